"""Outside programs run to their end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reproquant import process
from reproquant.errors import ToolError

PROGRAM = (
    "import sys; print('one', flush=True); print('trouble', file=sys.stderr); print('two'); sys.exit({})"
)


def test_standard_output_is_told_line_by_line_and_the_rest_goes_to_the_log(tmp_path: Path) -> None:
    told: list[str] = []
    process.run([sys.executable, "-c", PROGRAM.format(0)], tmp_path / "log", tell=told.append)
    assert told == ["one", "two"]
    assert (tmp_path / "log").read_text().splitlines()[-1] == "trouble"


def test_a_program_that_fails_while_it_is_heard_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ToolError, match="ended with code 3") as failed:
        process.run([sys.executable, "-c", PROGRAM.format(3)], tmp_path / "log", tell=told.append)
    assert told == ["one", "two"]
    assert "trouble" in failed.value.reason


def test_a_program_is_ended_when_who_hears_it_fails(tmp_path: Path) -> None:
    def refuse(line: str) -> None:
        raise RuntimeError(line)

    endless = "import time\nprint('one', flush=True)\ntime.sleep(600)"
    with pytest.raises(RuntimeError, match="one"):
        process.run([sys.executable, "-c", endless], tmp_path / "log", tell=refuse)


class Stuck(subprocess.Popen[bytes]):
    """A process that hangs in a driver: no signal ends it."""

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "it would be waited for forever"
        raise subprocess.TimeoutExpired("stuck", timeout)


def test_a_process_that_no_signal_ends_is_not_waited_for_forever() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as real:
        stuck = Stuck(["true"], start_new_session=True)
        stuck.pid, pid = real.pid, stuck.pid
        process.stop_group(stuck, grace_s=0.1)
        stuck.pid = pid
        subprocess.Popen.wait(stuck)
        assert real.wait(5) < 0
