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
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from reproquant.errors import ReproquantError
from reproquant.files import digest_of, write_json
from reproquant.provenance.record import compose, record_path
from reproquant.recipe import recipe as make_recipe
from reproquant.study import Study

THREAD_HINTS = tuple(
    f"{library}_NUM_THREADS" for library in ("OMP", "GOTO", "OPENBLAS", "MKL", "VECLIB", "NUMEXPR")
)
"""Set by Snakemake for every job; vLLM would start that many threads on its worker's one core."""


@dataclass
class Run:
    """A stage under way: the study, the log, and scratch paths for what it makes."""

    study: Study
    log: Path
    folder: Path
    _scratch: dict[Path, Path] = field(default_factory=dict)

    def scratch(self, final: Path) -> Path:
        """A path to write ``final`` to (file or folder), on the same file system.

        It is renamed into place when the stage has succeeded, in the order of
        the calls, and thrown away otherwise.
        """
        return self._scratch.setdefault(final, self.folder / final.name)

    def publish(self) -> None:
        """Rename everything that was made into place."""
        for final, scratch in self._scratch.items():
            if final.is_dir():
                shutil.rmtree(final)
            final.parent.mkdir(parents=True, exist_ok=True)
            scratch.replace(final)

    @property
    def outputs(self) -> list[Path]:
        """The files that were made; a folder's files stand in its manifest, which is one of these."""
        return [final for final in self._scratch if final.is_file()]


@contextmanager
def stage(
    name: str, study: Path, recipe: str, log: Path, inputs: Sequence[Path], output: Path, **wildcards: str
) -> Iterator[Run]:
    """Run the body as stage ``name``: all or nothing, with a record.

    ``study`` is ``results/<study>/study.json``; ``recipe`` the digest that the
    plan was made with; ``output`` the main output, beside which the record goes.
    """
    started = _now()
    begin = time.monotonic()
    terminal = _send_output_to(log)
    for hint in THREAD_HINTS:
        os.environ.pop(hint, None)
    title = " ".join([name, *wildcards.values()])
    folder = study.parent / ".scratch" / f"{name}{''.join('-' + value for value in wildcards.values())}"
    try:
        loaded = Study.load(study)
        made = make_recipe(name, loaded, **wildcards)
        if digest_of(made) != recipe:
            raise ReproquantError(
                f"stage {name}",
                "code, lock or study changed between the plan and this job",
                "run the same command again; nothing was written",
            )
        _tell(terminal, f"{title} …")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run = Run(loaded, log, folder)
        yield run
        run.publish()
        record = compose(study.parent, made, inputs, run.outputs, started, _now())
        write_json(record_path(output), record)
        _tell(terminal, f"{title}: done in {time.monotonic() - begin:.1f} s")
    except ReproquantError as error:
        _fail(str(error), terminal)
    except OSError as error:
        traceback.print_exc()
        where = error.filename or f"stage {name}"
        remedy = "free some space" if error.errno == 28 else "check the path, its permissions and the disk"
        _fail(
            str(ReproquantError(where, f"{error.strerror}", f"{remedy}, then run the same command again")),
            terminal,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fail(message: str, terminal: int) -> None:
    print(message, file=sys.stderr, flush=True)
    os.write(terminal, f"{message}\n".encode())
    raise SystemExit(2)


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
