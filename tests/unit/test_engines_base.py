"""Starting and ending servers, with the mock server as the engine's program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mock_engine import MockEngine, subject
from reproquant.engines import base
from reproquant.engines.base import Plan
from reproquant.engines.refusals import Unsupported
from reproquant.errors import ToolError
from reproquant.files import repository
from reproquant.machine.host import group_members


def test_a_launched_server_is_healthy_and_gone_after_stop(tmp_path: Path) -> None:
    engine = MockEngine()
    endpoint = engine.launch(engine.plan(subject("steady")), tmp_path / "log")
    group = engine.process_group
    assert group and psutil.pid_exists(group) and endpoint.start_s > 0
    assert endpoint.url == f"http://127.0.0.1:{endpoint.port}"
    assert not engine.died(within_s=0)
    engine.stop()
    assert not psutil.pid_exists(group) and engine.died(within_s=0)


def test_a_refusal_is_told_apart_from_other_failures(tmp_path: Path) -> None:
    words = "FP8 is not supported on this GPU type (sm_70)"
    with pytest.raises(Unsupported) as caught:
        start(tmp_path, "--refuse", words)
    assert caught.value.evidence == words
    with pytest.raises(ToolError, match="ended with code 1 before it was healthy"):
        start(tmp_path, "--refuse", "OSError: no such model")


def test_an_earlier_servers_refusal_in_the_same_log_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        start(tmp_path, "--refuse", "FP8 is not supported on this GPU type (sm_70)")
    with pytest.raises(ToolError, match="MemoryError"):
        start(tmp_path, "--refuse", "MemoryError: no")


def test_a_server_that_is_never_healthy_is_ended_in_time(tmp_path: Path) -> None:
    engine = MockEngine("--sleep", start_timeout_s=0.5)
    started = time.monotonic()
    with pytest.raises(ToolError, match=r"wasn't healthy within 0\.5 s"):
        engine.launch(engine.plan(subject("steady")), tmp_path / "log")
    assert engine.process_group is None and time.monotonic() - started < 10


def test_what_the_server_started_itself_is_ended_with_it(tmp_path: Path) -> None:
    engine = MockEngine("--worker", str(tmp_path / "pid"))
    engine.launch(engine.plan(subject("steady")), tmp_path / "log")
    worker = int((tmp_path / "pid").read_text())
    assert running(worker)
    engine.stop()
    assert not running(worker)


def test_nothing_outlives_a_measuring_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from mock_engine import MockEngine, subject;"
        f"engine = MockEngine('--worker', {str(tmp_path / 'pid')!r});"
        f"engine.launch(engine.plan(subject('steady')), Path({str(tmp_path / 'log')!r}));"
        "print(engine.process_group, flush=True); time.sleep(60)"
    )
    paths = os.pathsep.join((str(Path(__file__).parent), str(repository() / "scripts")))
    measuring = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert measuring.stdout
    server, worker = int(measuring.stdout.readline()), int((tmp_path / "pid").read_text())
    assert running(server) and running(worker)
    measuring.kill()
    measuring.communicate()
    deadline = time.monotonic() + 10
    while (running(server) or running(worker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(server) and not running(worker)


def test_a_variable_that_would_change_the_engine_unrecorded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOCK_SPEED", "2")
    with pytest.raises(ToolError, match="MOCK_SPEED"):
        start(tmp_path)


def test_the_port_goes_where_the_plan_says_port() -> None:
    plan = Plan(("serve", "--port", "PORT", "--name", "PORTER"), {}, ())
    assert plan.on_port(8123) == ["serve", "--port", "8123", "--name", "PORTER"]


def running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def start(folder: Path, *arguments: str) -> None:
    engine = MockEngine(*arguments)
    engine.launch(engine.plan(subject("steady")), folder / "log")


@pytest.mark.parametrize(
    ("script", "words"), [("sleep 30 & sleep 30", "didn't end within 0.3 s"), ("exit 3", "ended with code 3")]
)
def test_a_tool_that_fails_or_hangs_is_told_and_nothing_of_it_is_left(
    script: str, words: str, tmp_path: Path
) -> None:
    engine = MockEngine(start_timeout_s=0.2)
    command = ("/bin/sh", "-c", f"echo $$ > {tmp_path}/group; {script}")
    with pytest.raises(ToolError, match=words):
        engine._run_tool(command, engine.plan(subject("steady")), tmp_path / "log", work_s=0.1)
    assert group_members(int((tmp_path / "group").read_text())) == []


def test_a_daemon_that_does_not_answer_keeps_a_stop_no_longer_than_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "END_S", 0.3)
    engine = MockEngine()
    planned = engine.plan(subject("steady"))
    engine.launch(replace(planned, ending=("/bin/sh", "-c", "sleep 5")), tmp_path / "log")
    started = time.monotonic()
    with pytest.raises(ToolError, match="remain"):
        engine.stop()
    assert time.monotonic() - started < 3


def test_a_container_tool_that_is_gone_is_an_error_of_the_stop_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "END_S", 0.3)
    engine = MockEngine()
    planned = engine.plan(subject("steady"))
    engine.launch(replace(planned, ending=(str(tmp_path / "gone"), "rm")), tmp_path / "log")
    with pytest.raises(ToolError, match="remain"):
        engine.stop()


def test_what_a_tool_leaves_behind_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "END_S", 0.3)
    engine = MockEngine()
    plan = replace(engine.plan(subject("steady")), ending=("/bin/sh", "-c", "exit 1"))
    with pytest.raises(ToolError, match="remain"):
        engine._run_tool(("/bin/true",), plan, tmp_path / "log", work_s=1)
