"""What every program of the workflow runs inside.

One place checks that the code is still the planned code, sends all output to the
stage's log, gives out scratch paths, renames finished outputs into place, writes
the record last, and turns a known failure into three lines and exit code 2.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from reproquant import process
from reproquant.errors import ReproquantError, of_system
from reproquant.files import digest_of, listed, sha256_file, write_json
from reproquant.machine import host
from reproquant.provenance import stored
from reproquant.provenance.record import compose, dependency, record_path
from reproquant.recipe import recipe as make_recipe
from reproquant.stages import STAGES
from reproquant.study import Study

THREAD_HINTS = tuple(
    f"{library}_NUM_THREADS" for library in ("OMP", "GOTO", "OPENBLAS", "MKL", "VECLIB", "NUMEXPR")
)
"""Set by Snakemake for every job; vLLM would start that many threads on its worker's one core."""


@dataclass
class Run:
    """A stage under way: the study, the log, and scratch paths for what it makes.

    ``worth_keeping`` may be set to False by a stage whose result must not answer
    the same work again.
    """

    study: Study
    log: Path
    folder: Path
    left_over: Path | None
    terminal: int
    worth_keeping: bool = True
    _scratch: dict[Path, Path] = field(default_factory=dict)

    def scratch(self, final: Path) -> Path:
        """A path to write ``final`` to (file or folder), on the same file system.

        It is renamed into place when the stage has succeeded, in the order of
        the calls, and thrown away otherwise.
        """
        return self._scratch.setdefault(final, self.folder / final.name)

    def unfinished(self) -> Path:
        """A folder that outlives a kill or a failure of this stage, and is gone when it has succeeded.

        Only the same work (recipe and input bytes) finds it again; what other work
        of this stage left is removed. It counts for nothing: what lies in it may be
        cut short anywhere, so check it before going on with it. Only a stage whose
        results are kept in the store has one.
        """
        if self.left_over is None:
            raise ValueError("this stage's work has no key")
        for other in self.left_over.parent.glob("*"):
            if other != self.left_over:
                shutil.rmtree(other)
        self.left_over.mkdir(parents=True, exist_ok=True)
        return self.left_over

    def answer(self, root: Path, folder: Path, names: Sequence[str]) -> None:
        """Take what lies below ``folder`` for what was made."""
        self._scratch = {root / name: folder / name for name in names}

    def tell(self, what: str) -> None:
        """Report progress within the stage, to the log and to the person at the terminal."""
        _tell(self.terminal, what)

    def publish(self) -> list[Path]:
        """Rename everything that was made into place."""
        for final, scratch in self._scratch.items():
            if final.is_dir():
                shutil.rmtree(final)
            final.parent.mkdir(parents=True, exist_ok=True)
            scratch.replace(final)
        return list(self._scratch)


@contextmanager
def stage(
    name: str, study: Path, recipe: str, log: Path, inputs: Sequence[Path], output: Path, **wildcards: str
) -> Iterator[Run]:
    """Run the body as stage ``name``: all or nothing, with a record.

    ``study`` is ``results/<study>/study.json``; ``recipe`` the digest that the
    plan was made with; ``output`` the main output, beside which the record goes.
    If the store holds the result of the same work, it is put into place and the
    process ends well before the body.
    """
    started, begin = process.now(), time.monotonic()
    terminal = _send_output_to(log)
    for hint in THREAD_HINTS:
        os.environ.pop(hint, None)
    title = " ".join([name, *wildcards.values()])
    root, folder = study.parent, study.parent / ".scratch" / title.replace(" ", "-")
    with _failures_told(title, log, terminal), _emptied(folder):
        loaded = Study.load(study)
        made = make_recipe(name, loaded, **wildcards)
        if digest_of(made) != recipe:
            raise ReproquantError(
                f"stage {name}",
                "code, lock or study changed between the plan and this job",
                "run the same command again; nothing was written",
            )
        _tell(terminal, f"{title} …")
        key = _key(name, made, inputs, root)
        left_over = root / ".unfinished" / folder.name
        run = Run(loaded, log, folder, left_over / key if key else None, terminal)
        kept = stored.take(key, folder / "kept") if key else None
        if kept:
            run.answer(root, folder / "kept", kept.outputs)
        else:
            yield run
        outputs = run.publish()
        result = kept or _result(outputs, root, started)
        if key and not kept and run.worth_keeping:
            stored.keep(key, root, result)
        facts = {"key": key, "answered": kept is not None, "made": result.made} if key else None
        files = {root / path: digest for path, digest in result.files.items() if root / path in outputs}
        write_json(record_path(output), compose(root, made, inputs, files, started, process.now(), facts))
        shutil.rmtree(left_over, ignore_errors=True)
        how = "answered from the store" if kept else "done"
        _tell(terminal, f"{title}: {how} in {time.monotonic() - begin:.1f} s")
    if kept:
        raise SystemExit(0)


@contextmanager
def _failures_told(title: str, log: Path, terminal: int) -> Iterator[None]:
    """End the process with three lines and code 2 for a failure; the log has the traceback."""
    try:
        yield
    except ReproquantError as error:
        told = error
    except OSError as error:
        traceback.print_exc()
        told = of_system(error, f"stage {title}")
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}; this is a mistake in the program"
        told = ReproquantError(f"stage {title}", reason, f"report it with {log}")
    else:
        return
    print(told, file=sys.stderr, flush=True)
    os.write(terminal, f"{told}\n".encode())
    raise SystemExit(2)


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    """An empty scratch folder, gone when the body ends."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _key(name: str, made: dict[str, Any], inputs: Sequence[Path], root: Path) -> str | None:
    """The key of the stage's result in the store; None if it isn't kept there."""
    kept = STAGES[name].kept
    if kept == "no":
        return None
    digests = {found.name: found.digest.sha256 for found in (dependency(path, root) for path in inputs)}
    return stored.key_of(made, digests, host.fingerprint() if kept == "by recipe and machine" else None)


def _result(outputs: Sequence[Path], root: Path, started: str) -> stored.Result:
    """What was made, every file hashed once; a manifest has the digests of the files that it lists."""
    digests: dict[str, str] = {}
    for path in outputs:
        if path.suffix == ".json":
            digests |= {(path.parent / name).relative_to(root).as_posix(): sha for name, sha in listed(path)}
    files = [file for path in outputs for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    names = {path.relative_to(root).as_posix(): path for path in files if path.is_file()}
    missing = [name for name in names if name not in digests]
    with ThreadPoolExecutor() as pool:
        digests |= zip(missing, pool.map(lambda name: sha256_file(names[name]), missing), strict=True)
    order = [path.relative_to(root).as_posix() for path in outputs]
    return stored.Result(
        order, {name: digests[name] for name in names}, {"started": started, "finished": process.now()}
    )


def _tell(terminal: int, what: str) -> None:
    """A line of progress, to the log and to the person at the terminal."""
    line = f"[{datetime.now():%H:%M:%S}] {what}"
    print(line, file=sys.stderr, flush=True)
    os.write(terminal, f"{line}\n".encode())


def _send_output_to(log: Path) -> int:
    """Point this process's output at an emptied log; the terminal's descriptor comes back."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    terminal = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    return terminal
