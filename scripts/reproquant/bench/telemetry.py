"""A sampler beside the server: what the GPUs and the CPU did during each launch, ten times a second.

It runs in a thread on the client's cores. Nothing that it meets ends a
measurement: a sensor that isn't there is left out, with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Literal

from pydantic import Field

from reproquant.bench.measurement import Part
from reproquant.bench.pinning import pinned
from reproquant.errors import ReproquantError
from reproquant.machine import gpu
from reproquant.machine.sensors import CardSensors, HostSensors, Values

INTERVAL_S = 0.1
SLOW = 10
FIRST_S = 10.0
END_S = 5.0
DECIMALS = 3

Columns = dict[str, list[float | None]]


class Window(Part):
    """A time in which requests ran; seconds after the recording's start."""

    kind: Literal["round", "sustained"] = Field(
        description="a round of the protocol, or batches one after the other for the sake of energy alone"
    )
    round: int | None = Field(description="null for sustained")
    concurrency: int
    start_s: float = Field(description="release of the (first) barrier")
    end_s: float = Field(description="last chunk of the last request")
    requests: int
    output_tokens: int


class Card(Part):
    """One GPU of the host; each column has a value for every sample, null where it gave none."""

    index: int = Field(description="place in NVML's order")
    used: bool = Field(description="whether the subject was given this card")
    power_from: Literal["instant", "usage"] = Field(
        description="the power of the moment, or nvmlDeviceGetPowerUsage: on newer parts a mean over a second"
    )
    columns: Columns = Field(
        description="temperature_c, sm_mhz, memory_mhz, event_reasons (NVML's bits), power_w, energy_j (from "
        "the span's start), utilization_percent, memory_bytes, foreign_processes (looked for once a second)"
    )


class Span(Part):
    """One start of the server, from before it to its end, or the run of the engine's own tool."""

    what: Literal["server", "native tool"]
    launch: int | None
    time_s: list[float] = Field(description="of each sample, after the recording's start, monotonic clock")
    host: Columns = Field(
        description="server_cores and busy_cores (CPU time a second, of the server and of all programs), "
        "rss_bytes of the server's process group, package_j (RAPL), frequency_mhz (once a second)"
    )
    cards: list[Card]
    windows: list[Window]
    not_measured: dict[str, str] = Field(description="the sensors without any value, with the reason")
    sampler_cpu_percent: float = Field(description="what the sampler itself took of one core")


class Telemetry(Part):
    """Everything that was recorded beside one subject."""

    subject: str
    interval_s: float = INTERVAL_S
    spans: list[Span]


class Recorder:
    """Records spans one after the other into ``telemetry``.

    ``group`` gives the process group that serves, None while none does, and
    ``members`` the ids of all processes that do.
    ``visible`` is the subject's ``CUDA_VISIBLE_DEVICES``; every other GPU of the
    host is recorded as well. ``cores`` are those whose frequency is read, the
    sampler runs on ``own_cores``.
    """

    def __init__(
        self,
        subject: str,
        group: Callable[[], int | None],
        members: Callable[[], list[int]],
        visible: str,
        cores: frozenset[int],
        own_cores: frozenset[int],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._group = group
        self._members = members
        self._visible = visible
        self._cores = cores
        self._own_cores = own_cores
        self._interval_s = interval_s
        self._origin_ns = time.monotonic_ns()
        self._sampler: _Sampler | None = None
        self._windows: list[Window] = []
        self.telemetry = Telemetry(subject=subject, interval_s=interval_s, spans=[])

    @contextmanager
    def span(self, what: Literal["server", "native tool"], launch: int | None = None) -> Iterator[None]:
        """Sample while the body runs, the first time before it begins."""
        sampler = self._sampler = _Sampler(
            self._group, self._members, self._visible, self._cores, self._interval_s
        )
        self._windows = []
        with pinned(self._own_cores):
            sampler.start()
        try:
            yield
        finally:
            sampler.stop()
            self._sampler = None
            self.telemetry.spans.append(sampler.span(what, launch, self._origin_ns, self._windows))

    def settled(self) -> None:
        """Say that the server is healthy: whoever comes to a card from now on isn't part of it."""
        if self._sampler:
            self._sampler.settled_ns = time.monotonic_ns()

    def mark(
        self,
        kind: Literal["round", "sustained"],
        number: int | None,
        concurrency: int,
        ns: tuple[int, int],
        requests: int,
        output_tokens: int,
    ) -> None:
        """Note a window of the span under way; ``ns`` are its start and end on the monotonic clock."""
        start_s, end_s = (round((moment - self._origin_ns) / 1e9, 4) for moment in ns)
        self._windows.append(
            Window(
                kind=kind, round=number, concurrency=concurrency, start_s=start_s, end_s=end_s,
                requests=requests, output_tokens=output_tokens,
            )
        )  # fmt: skip

    def tells_energy(self) -> bool:
        """Whether all that the subject runs on has told joules or watts in the span under way."""
        return self._sampler is not None and self._sampler.tells_energy()


class _Row:
    """One sample: when, the host's values, each card's, and where it was looked for, who computes there."""

    def __init__(self, ns: int, host: Values, cards: list[Values]) -> None:
        self.ns = ns
        self.host = host
        self.cards = cards
        self.own: frozenset[int] = frozenset()
        self.processes: list[frozenset[int] | None] | None = None


class _Sampler:
    """The thread that samples one span; however slow a driver is, it takes half of its core at most."""

    def __init__(
        self,
        group: Callable[[], int | None],
        members: Callable[[], list[int]],
        visible: str,
        cores: frozenset[int],
        interval_s: float,
    ) -> None:
        self._group = group
        self._members = members
        self._visible = visible
        self._interval_s = interval_s
        self._host = HostSensors(cores)
        self._cards: list[CardSensors] = []
        self._used: list[int] = []
        self._rows: list[_Row] = []
        self._over, self._first = threading.Event(), threading.Event()
        self._trouble: str | None = None
        self._cpu_s = self._wall_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.settled_ns: int | None = None

    def start(self) -> None:
        """Begin, and return when the first sample is there or can't be had."""
        self._thread.start()
        self._first.wait(FIRST_S)

    def stop(self) -> None:
        """End with a last sample; a thread that hangs in the driver is left behind."""
        self._over.set()
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._trouble = f"the driver didn't answer for {END_S:g} s"

    def tells_energy(self) -> bool:
        rows = self._rows[-SLOW:]
        if not rows or self._trouble:
            return False
        if not self._visible:
            return any(row.host.get("package_j") is not None for row in rows)
        return bool(self._used) and all(
            any(row.cards[index].get(name) is not None for row in rows for name in ("energy_j", "power_w"))
            for index in self._used
        )

    def _run(self) -> None:
        begun, begun_cpu = time.monotonic(), time.thread_time()
        try:
            with gpu.driver() as handles:
                self._cards = [CardSensors(index, handle) for index, handle in enumerate(handles)]
                uuids = [str(gpu.asked("nvmlDeviceGetUUID", handle) or "") for handle in handles]
                self._used = gpu.indices(self._visible, uuids)
                self._sample_until_over()
        except Exception as error:
            self._trouble = f"the sampler ended: {error!r}"
        finally:
            self._cpu_s, self._wall_s = time.thread_time() - begun_cpu, time.monotonic() - begun
            self._first.set()

    def _sample_until_over(self) -> None:
        members: list[int] = []
        due = time.monotonic()
        state: tuple[int | None, int | None] = (None, None)
        for number in count():
            begun, last = time.monotonic(), self._over.is_set()
            before, state = state, (self._group(), self.settled_ns)
            slow = number % SLOW == 0 or state != before
            if slow:
                members = self._asked_members(members)
            row = _Row(time.monotonic_ns(), self._host.read(members), [card.read() for card in self._cards])
            if slow:
                row.host["frequency_mhz"] = self._host.frequency_mhz()
                row.own, row.processes = frozenset(members), [card.processes() for card in self._cards]
            self._rows.append(row)
            self._first.set()
            if last:
                return
            due, now = max(due + self._interval_s, begun), time.monotonic()
            self._over.wait(max(due - now, now - begun))

    def _asked_members(self, before: list[int]) -> list[int]:
        """The server's processes, or those of before where they can't be had at this moment."""
        try:
            return self._members()
        except ReproquantError:
            return before

    def span(
        self,
        what: Literal["server", "native tool"],
        launch: int | None,
        origin_ns: int,
        windows: Sequence[Window],
    ) -> Span:
        """What was sampled, as columns."""
        rows = list(self._rows)
        missing = {f"host.{name}": words for name, words in self._host.missing.items()}
        host = _columns([row.host for row in rows], "host", missing)
        cards = []
        for place, card in enumerate(self._cards):
            prefix = f"cards.{card.index}"
            missing |= {f"{prefix}.{name}": words for name, words in card.missing.items()}
            values = [
                {**row.cards[place], "foreign_processes": foreign}
                for row, foreign in zip(rows, self._foreign(rows, place), strict=True)
            ]
            columns = _from_zero(_columns(values, prefix, missing))
            cards.append(
                Card(
                    index=card.index,
                    used=card.index in self._used,
                    power_from="instant" if card.power_from == "instant" else "usage",
                    columns=columns,
                )
            )
        present = {f"host.{name}" for name in host}
        present |= {f"cards.{card.index}.{name}" for card in cards for name in card.columns}
        return Span(
            what=what,
            launch=launch,
            time_s=[round((row.ns - origin_ns) / 1e9, 4) for row in rows],
            host=host,
            cards=cards,
            windows=list(windows),
            not_measured={
                **{name: words for name, words in missing.items() if name not in present},
                **({"sampler": self._trouble} if self._trouble else {}),
            },
            sampler_cpu_percent=round(100 * self._cpu_s / self._wall_s, 3) if self._wall_s else 0.0,
        )

    def _foreign(self, rows: Sequence[_Row], place: int) -> list[float | None]:
        """How many programs compute on a card that aren't the server's, where it was looked for them.

        Inside a container the driver may number processes otherwise than this
        process sees them. Then none of the server's own is among them, and
        foreign is who was there before the server, or came after it was healthy.
        """
        looks = [(row, row.processes[place]) for row in rows if row.processes is not None]
        before = next((seen for _, seen in looks if seen is not None), frozenset())
        settled = next(
            (seen for row, seen in looks if seen is not None and row.ns >= (self.settled_ns or 1 << 63)), None
        )
        found: dict[int, float | None] = {}
        for row, seen in looks:
            if seen is None:
                found[row.ns] = None
            elif seen & row.own:
                found[row.ns] = len(seen - row.own)
            else:
                found[row.ns] = len((seen & before) | (seen - (seen if settled is None else settled)))
        return [found.get(row.ns) for row in rows]


def _columns(rows: Sequence[Mapping[str, float | None]], prefix: str, missing: dict[str, str]) -> Columns:
    """Rows as columns; one without any value is left out, with a reason in ``missing``."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [_rounded(row.get(name)) for row in rows] for name in names}
    for name, values in columns.items():
        if all(value is None for value in values):
            missing.setdefault(f"{prefix}.{name}", "it gave no value")
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _from_zero(columns: Columns) -> Columns:
    """Columns with the energy counted from the first sample that has one."""
    if "energy_j" in columns:
        first = next(value for value in columns["energy_j"] if value is not None)
        columns["energy_j"] = [
            None if value is None else _rounded(value - first) for value in columns["energy_j"]
        ]
    return columns


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return int(value) if value == int(value) else round(value, DECIMALS)
