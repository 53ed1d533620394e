"""What every engine is to the measurement: a server with a plan, a start, a dialect and an end."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from reproquant.engines.native import NativeRun
from reproquant.engines.refusals import Unsupported, classify, last_words
from reproquant.engines.streamed import Streamed
from reproquant.engines.warden import Warden
from reproquant.errors import ToolError
from reproquant.machine.gpu import visible_devices
from reproquant.machine.host import group_members
from reproquant.process import spawn, stop_group
from reproquant.study import Subject
from reproquant.toolchain.container import CORES

LOOPBACK = "127.0.0.1"
PORT = "PORT"
POLL_S = 0.1
END_S = 10.0


@dataclass(frozen=True)
class Plan:
    """How a subject is served: the command line, with PORT where the port goes, and its variables.

    CORES stands where the cores go that a container may use. ``cache_off`` names
    what in it turns prompt caches off. ``ending`` is a command that ends what is
    left outside of the command's process group; it succeeds when nothing is.
    """

    command: tuple[str, ...]
    environment_variables: Mapping[str, str]
    cache_off: tuple[str, ...]
    ending: tuple[str, ...] = ()

    def visible(self, gpus: int) -> str:
        """``CUDA_VISIBLE_DEVICES`` of a subject with so many GPUs; a container is shown them by an option."""
        return self.environment_variables.get("CUDA_VISIBLE_DEVICES", visible_devices(gpus))

    def on_port(self, port: int) -> list[str]:
        """The command line with a port and this thread's cores in their places."""
        return [str(port) if word == PORT else word for word in with_cores(self.command)]


@dataclass(frozen=True)
class Dialect:
    """How an engine's HTTP interface differs from the others'.

    ``text_key`` and ``special_key`` name /tokenize's text and its switch for
    special tokens; ``completion`` is laid over the body of /v1/completions;
    ``counters`` gives for each of ``bench.counters.Counters``' fields the names
    that it has in /metrics, of which a server has at most one.
    """

    text_key: str
    special_key: str
    completion: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """A healthy server: its address, its port, and the seconds from launch to healthy."""

    url: str
    port: int
    start_s: float


def with_cores(command: Sequence[str]) -> list[str]:
    """A command line with this thread's cores in their place, which a daemon's containers don't inherit."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return [cores if word == CORES else word for word in command]


class Engine(ABC):
    """One engine that serves one artifact; at most one server of it runs at a time.

    ``foreign_prefix`` begins the names of the environment variables that
    change how the engine runs; one that isn't in the plan is refused.
    """

    name: ClassVar[Literal["llama_cpp", "vllm"]]
    dialect: ClassVar[Dialect]
    foreign_prefix: ClassVar[str]

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._tool: subprocess.Popen[bytes] | None = None
        self._warden: Warden | None = None
        self._ending: tuple[str, ...] = ()
        self._port = 0
        self._log = Path(os.devnull)
        self._log_start = 0

    @property
    @abstractmethod
    def artifact_bytes(self) -> int:
        """Size of the weights that the engine loads."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Version, commit and build of the engine, as JSON data."""

    @abstractmethod
    def plan(self, subject: Subject) -> Plan:
        """The exact command line and environment variables for a subject; starts nothing."""

    def native(self, plan: Plan, subject: Subject, log: Path) -> NativeRun | None:
        """The study's workload by the engine's own benchmark tool, while no server of it runs.

        None if the engine has none. Raises ToolError if the tool can't be told
        what the subject is, or fails.
        """
        return None

    def streamed(self, subject: Subject) -> Streamed | None:
        """What a subject reads out of memory for each token; None if the engine can't tell.

        Raises FormatError if the weights' headers can't be read.
        """
        return None

    def _run_tool(self, command: Sequence[str], plan: Plan, log: Path, work_s: float) -> None:
        """Run the engine's own tool to its end; whatever it starts ends with it, or with this process.

        ``work_s`` is the time that it may take once it is ready, for which it has
        as long as a server. Raises ToolError if it fails, takes longer, or leaves
        something running.
        """
        limit_s = self._start_timeout_s + work_s
        tool = self._tool = spawn(with_cores(command), log, plan.environment_variables)
        warden = Warden(tool.pid, plan.ending)
        try:
            code = tool.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ToolError(log, f"it didn't end within {limit_s:g} s", "see the log") from None
        finally:
            stop_group(tool)
            self._tool = None
            warden.dismiss()
            _insist_on_the_end(f"{self.name}'s tool", tool.pid, plan.ending)
        if code:
            raise ToolError(log, f"it ended with code {code}", "see the log")

    def launch(self, plan: Plan, log: Path) -> Endpoint:
        """Start the server on a free loopback port and wait until /health answers 200.

        Its output is appended to ``log``. Raises Unsupported if the engine
        refuses this machine, and ToolError with its words if it ends for any
        other reason or isn't healthy in time; nothing is left running then,
        nor when this process is killed.
        """
        self._refuse_foreign_variables(plan)
        self._port = free_port()
        self._log, self._log_start = log, log.stat().st_size if log.exists() else 0
        started = time.monotonic()
        self._process = spawn(plan.on_port(self._port), log, plan.environment_variables)
        self._ending = plan.ending
        self._warden = Warden(self._process.pid, plan.ending)
        try:
            while not _healthy(self._port):
                if self._process.poll() is not None:
                    raise self.failure(f"it ended with code {self._process.returncode} before it was healthy")
                if time.monotonic() - started > self._start_timeout_s:
                    raise self.failure(f"it wasn't healthy within {self._start_timeout_s:g} s")
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise
        return Endpoint(f"http://{LOOPBACK}:{self._port}", self._port, time.monotonic() - started)

    def stop(self) -> None:
        """End the server, its whole process group and its container; return when its port is free again.

        Raises ToolError if that isn't so within ten seconds, or twice that where
        a container's daemon doesn't answer.
        """
        if self._process is None:
            return
        group = self._process.pid
        stop_group(self._process)
        self._process = None
        if self._warden:
            self._warden.dismiss()
        _insist_on_the_end(f"{self.name} server", group, self._ending, self._port)

    @property
    def process_group(self) -> int | None:
        """The process group of the server or the tool that runs, or None."""
        running = self._process or self._tool
        return running.pid if running else None

    def processes(self) -> list[int]:
        """The ids of the processes of what runs; none where they can't be seen."""
        group = self.process_group
        return [] if group is None else group_members(group)

    def died(self, within_s: float) -> bool:
        """Whether the server has ended by itself, waiting up to ``within_s`` seconds for that."""
        if self._process is None:
            return True
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def failure(self, what: str) -> Unsupported | ToolError:
        """The error that tells why this launch failed, in the server's own words.

        The log's first line is the command, whose words are ours.
        """
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            text = file.read().decode(errors="replace").partition("\n")[2]
        if refusal := classify(self.name, text):
            return Unsupported(f"{self.name} server", refusal.meaning, refusal.evidence)
        return ToolError(
            self._log,
            f"the {self.name} server: {what}:\n{last_words(text)}",
            "read the whole log named above; mend the subject's arguments or the environment",
        )

    def _refuse_foreign_variables(self, plan: Plan) -> None:
        """A container sees no other variables than the plan's."""
        if plan.ending:
            return
        foreign = sorted(
            name
            for name in os.environ
            if name.startswith(self.foreign_prefix) and name not in plan.environment_variables
        )
        if foreign:
            raise ToolError(
                ", ".join(foreign),
                f"set in the environment, where it would change how {self.name} runs and stand in no record",
                "unset it, or write it into the study",
            )


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _insist_on_the_end(what: str, group: int, ending: Sequence[str], port: int | None = None) -> None:
    """Wait until nothing of a program remains; raises ToolError if something does after ``END_S`` seconds.

    What is left would disturb the next measurement.
    """
    deadline = time.monotonic() + END_S
    while (members := group_members(group)) or not _ended(ending) or not (port is None or _is_free(port)):
        if time.monotonic() > deadline:
            raise ToolError(
                what,
                f"after its end, its container, its port or the processes {members} remain",
                "end them before the next measurement",
            )
        time.sleep(POLL_S)


def _ended(ending: Sequence[str]) -> bool:
    """Run the command that ends what is left; whether nothing is."""
    try:
        return (
            not ending
            or subprocess.run(ending, capture_output=True, check=False, timeout=END_S).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) != 0


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
