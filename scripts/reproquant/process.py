"""Outside programs: run to the end, or kept running, and never left behind."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from reproquant.errors import ToolError

PR_SET_PDEATHSIG = 1
TAIL_LINES = 12


@dataclass
class Program:
    """An outside program that this process has run: its name, and when it started and ended (ISO 8601)."""

    name: str
    started: str
    finished: str | None = None


PROGRAMS: dict[int, Program] = {}
"""Those of this process, by process id, in the order of their starts."""


def _die_with_parent() -> None:
    """In the child: ask Linux for SIGKILL as soon as the parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(
    command: Sequence[object],
    log: Path,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    piped: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program in a process group of its own, its output appended to ``log``.

    If ``piped``, its standard output can be read from the process instead.
    It is killed when the starting process dies, however that happens.
    ``environment`` is laid over the current one. Raises ToolError if the
    program can't be started at all.
    """
    words = [str(word) for word in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"$ {shlex.join(words)}\n".encode())
        output.flush()
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output if piped else subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            raise ToolError(
                words[0], f"it could not be started: {error}", "check that the file exists"
            ) from error
    PROGRAMS[process.pid] = Program(Path(words[0]).name, now())
    return process


def run(
    command: Sequence[object],
    log: Path,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    remedy: str = "the whole output is in the log named above",
    tell: Callable[[str], None] | None = None,
) -> None:
    """Run a program to its end; raise ToolError with its last lines if it fails.

    ``tell`` gets each line of its standard output as it comes, instead of the log.
    """
    process = spawn(command, log, environment, cwd, piped=tell is not None)
    try:
        if tell and process.stdout:
            for line in process.stdout:
                tell(line.decode(errors="replace").rstrip())
        code = process.wait()
        _ended(process)
    except BaseException:
        stop_group(process)
        raise
    if code:
        raise ToolError(log, f"{Path(str(command[0])).name} ended with code {code}:\n{tail(log)}", remedy)


def stop_group(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> None:
    """End a spawned program and everything it started: SIGTERM, then SIGKILL.

    One that even that doesn't end, such as a process that hangs in a driver, is not waited for
    any longer than ``grace_s`` seconds.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    _ended(process)


def now() -> str:
    """This moment, ISO 8601 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _ended(process: subprocess.Popen[bytes]) -> None:
    if (program := PROGRAMS.get(process.pid)) and program.finished is None:
        program.finished = now()


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, for a message."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])
