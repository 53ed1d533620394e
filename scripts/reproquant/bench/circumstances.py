"""What the telemetry says of a run: its figures, its energy, and why it may not be believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal

from reproquant.bench.checks import Findings
from reproquant.bench.measurement import CardFigures, Check, Energy, HostFigures, Watched
from reproquant.bench.statistics import spread, summarize
from reproquant.bench.telemetry import Card, Columns, Span, Telemetry, Window
from reproquant.machine.condition import THROTTLING
from reproquant.study import Benchmark, Limits

NEAR_S = 1.5
GATES = {
    "temperature_c": "whether it was hot",
    "event_reasons": "whether it lowered its clocks",
    "foreign_processes": "whether another program used it",
}
COUNTER, INTEGRAL = "energy counter", "integral of power"


def watched(telemetry: Telemetry, no_energy: Sequence[str] = ()) -> Watched | None:
    """The figures of every card and of the host over the rounds; None if no server was watched."""
    spans = _of_servers(telemetry)
    if not spans:
        return None
    cards = [_card_figures(spans, index) for index in sorted({card.index for s in spans for card in s.cards})]
    host = {name: _median(_host_values(spans, name)) for name in HostFigures.model_fields}
    missing = {name: words for span in spans for name, words in span.not_measured.items()}
    return Watched(
        cards=cards,
        host=HostFigures(**host),
        not_measured={**missing, **({"energy": "; ".join(no_energy)} if no_energy else {})},
        sampler_cpu_percent=max(span.sampler_cpu_percent for span in spans),
    )


def peak_rss_bytes(telemetry: Telemetry) -> int | None:
    """The most memory that the server's process group held; pages that it shares count once a process."""
    values = [v for span in _of_servers(telemetry) for v in _told(span.host, "rss_bytes")]
    return int(max(values)) if values else None


def findings(telemetry: Telemetry, limits: Limits, on_gpu: bool, cores: int) -> Findings:
    """Why the circumstances reject a run, make it unsteady or doubtful.

    On a GPU: heat, a slowdown by the hardware, a foreign program on a card of
    the subject reject; a median clock that moved makes it unsteady. On a CPU of
    ``cores`` cores a clock that moved or busy cores are doubts.
    """
    found = Findings()
    spans = [span for span in _of_servers(telemetry) if span.windows]
    if not spans:
        return found
    if not on_gpu:
        found.unsteady += _clock_reasons(spans, None, limits)
        found.weak += _others_busy(spans, limits, cores)
        return found
    used = sorted({card.index for span in spans for card in span.cards if card.used})
    trouble = [span.not_measured["sampler"] for span in spans if "sampler" in span.not_measured]
    if trouble or not used:
        found.weak.append(
            f"The GPUs could not be watched{' all the time' if used else ''} "
            f"({trouble[0] if trouble else 'the driver shows none of them'}): whether they were hot, slowed "
            "down or shared is unknown."
        )
    for index in used:
        found.wrong += _card_reasons(spans, index, limits)
        found.unsteady += _clock_reasons(spans, index, limits)
        found.weak += dict.fromkeys(_blind_spots(spans, index))
    return found


def energies(
    telemetry: Telemetry, benchmark: Benchmark, on_gpu: bool
) -> tuple[list[Energy], list[Check], list[str]]:
    """Tokens per joule of each sustained window, the counter against the integral, and why there is none.

    On a GPU the energy is that of the subject's cards, without the rest of the
    machine; a card that NVML doesn't name, such as a part of one, has none. A
    counter beyond ``energy_flag_percent`` from the integral gives no figure.
    """
    found: list[Energy] = []
    checks: list[Check] = []
    reasons: list[str] = []
    for span in _of_servers(telemetry):
        for window in span.windows:
            if window.kind != "sustained":
                continue
            counter, integral = _joules(span, window, on_gpu)
            check = _energy_check(window, counter, integral, benchmark.limits)
            checks += [check] if check else []
            joules = integral if counter is None else counter
            if check and abs(check.difference) > benchmark.limits.energy_flag_percent:
                reasons.append(f"at concurrency {window.concurrency} counter and power contradict each other")
            elif not joules:
                reasons.append(f"at concurrency {window.concurrency} no counter answered or moved")
            else:
                found.append(_energy(window, joules, "integral" if counter is None else "counter", on_gpu))
    if not found and not reasons:
        reasons.append(_why_no_energy(telemetry, benchmark, on_gpu))
    return found, checks, reasons


def _of_servers(telemetry: Telemetry) -> list[Span]:
    return [span for span in telemetry.spans if span.what == "server"]


def _rounds(span: Span) -> list[Window]:
    return [window for window in span.windows if window.kind == "round"]


def _told(columns: Columns, name: str) -> list[float]:
    return [value for value in columns.get(name, ()) if value is not None]


def _between(span: Span, columns: Columns, name: str, start_s: float, end_s: float) -> list[float]:
    """The values within a time, or the one nearest to it, if that is near."""
    told = [(at, v) for at, v in zip(span.time_s, columns.get(name, ()), strict=False) if v is not None]
    within = [value for at, value in told if start_s <= at <= end_s]
    if within or not told:
        return within
    away, value = min((max(start_s - at, at - end_s), value) for at, value in told)
    return [value] if away <= NEAR_S else []


def _over_rounds(span: Span, columns: Columns, name: str) -> list[float]:
    """The values from the first round's start to the last one's end."""
    rounds = _rounds(span)
    if not rounds:
        return []
    return _between(span, columns, name, rounds[0].start_s, rounds[-1].end_s)


def _card(span: Span, index: int) -> Card | None:
    return next((card for card in span.cards if card.index == index), None)


def _card_values(spans: Sequence[Span], index: int, name: str) -> list[float]:
    return [
        value
        for span in spans
        if (card := _card(span, index))
        for value in _over_rounds(span, card.columns, name)
    ]


def _host_values(spans: Sequence[Span], name: str) -> list[float]:
    return [value for span in spans for value in _over_rounds(span, span.host, name)]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _card_figures(spans: Sequence[Span], index: int) -> CardFigures:
    cards = [card for span in spans if (card := _card(span, index))]
    memory = [told for card in cards if (told := _told(card.columns, "memory_bytes"))]
    temperatures = _card_values(spans, index, "temperature_c")
    return CardFigures(
        index=index,
        used=any(card.used for card in cards),
        peak_bytes=int(max(max(told) - told[0] for told in memory)) if memory else None,
        temperature_c=max(temperatures, default=None),
        **{
            name: _median(_card_values(spans, index, name))
            for name in ("sm_mhz", "power_w", "utilization_percent")
        },
    )


def _card_reasons(spans: Sequence[Span], index: int, limits: Limits) -> Iterator[str]:
    hottest = max(_card_values(spans, index, "temperature_c"), default=0.0)
    if hottest >= limits.hot_c:
        yield f"GPU {index} was {hottest:g} °C hot during the rounds; below {limits.hot_c:g} °C is well."
    bits = _card_values(spans, index, "event_reasons")
    for bit, words in THROTTLING.items():
        share = sum(bool(int(value) & bit) for value in bits) / len(bits) if bits else 0
        if share:
            yield f"GPU {index} lowered its clocks in {share:.0%} of the rounds' samples because of {words}."
    strangers = max(_card_values(spans, index, "foreign_processes"), default=0)
    if strangers:
        yield f"On GPU {index} {strangers:g} other program(s) computed during the rounds."


def _clock_reasons(spans: Sequence[Span], index: int | None, limits: Limits) -> Iterator[str]:
    """A sentence for each concurrency whose rounds' median clock moved; no index means the CPU's.

    Virtual machines tell a clock of 0, which is none.
    """
    whose, name = (
        ("the CPU's clock", "frequency_mhz") if index is None else (f"GPU {index}'s clock", "sm_mhz")
    )
    for concurrency in sorted({window.concurrency for span in spans for window in _rounds(span)}):
        medians = [
            median(values)
            for span in spans
            for window in _rounds(span)
            if window.concurrency == concurrency
            and (columns := span.host if index is None else getattr(_card(span, index), "columns", {}))
            and (values := [*filter(None, _between(span, columns, name, window.start_s, window.end_s))])
        ]
        if medians and 100 * (moved := spread(summarize(medians))) > limits.clock_percent:
            yield (
                f"At concurrency {concurrency} {whose} differs from round to round by {moved:.1%} of its "
                f"median; {limits.clock_percent:g}% is steady."
            )


def _blind_spots(spans: Sequence[Span], index: int) -> Iterator[str]:
    """What a card didn't tell in any of the launches; those whose sampler ended are told elsewhere."""
    for span in spans:
        for name, what in GATES.items():
            if "sampler" not in span.not_measured and not _card_values([span], index, name):
                words = span.not_measured.get(f"cards.{index}.{name}", "no sample")
                yield f"GPU {index} doesn't tell {name.replace('_', ' ')} ({words}): {what} is unknown."


def _others_busy(spans: Sequence[Span], limits: Limits, cores: int) -> Iterator[str]:
    busy, own = (_median(_host_values(spans, name)) for name in ("busy_cores", "server_cores"))
    if busy is None or own is None:
        return
    share = max(0.0, busy - own) / cores
    if 100 * share > limits.busy_percent:
        yield (
            f"During the rounds other programs kept the cores {share:.0%} busy; "
            f"{limits.busy_percent:g}% is quiet."
        )


def _joules(span: Span, window: Window, on_gpu: bool) -> tuple[float | None, float | None]:
    """Energy of a window by counter and by integral, all cards of the subject; None where one has none."""
    cards = [card for card in span.cards if card.used]
    if not on_gpu:
        return _growth(span, span.host.get("package_j"), window), None
    counters = [_growth(span, card.columns.get("energy_j"), window) for card in cards]
    integrals = [_integral(span, card.columns.get("power_w"), window) for card in cards]
    counted, integrated = (
        None if None in values else sum(value or 0.0 for value in values) for values in (counters, integrals)
    )
    return counted, integrated


def _points(span: Span, column: Sequence[float | None] | None) -> list[tuple[float, float]]:
    return [(at, value) for at, value in zip(span.time_s, column or (), strict=False) if value is not None]


def _growth(span: Span, column: Sequence[float | None] | None, window: Window) -> float | None:
    """How far a counter went between the samples nearest outside a window, cut to the window's length."""
    points = _points(span, column)
    before = [point for point in points if point[0] <= window.start_s]
    after = [point for point in points if point[0] >= window.end_s]
    if not before or not after:
        return None
    return _at(points, window.end_s) - _at(points, window.start_s)


def _integral(span: Span, column: Sequence[float | None] | None, window: Window) -> float | None:
    """The integral over a window by the trapezoidal rule, in joules if the column is in watts."""
    points = _points(span, column)
    if not points or points[0][0] > window.start_s or points[-1][0] < window.end_s:
        return None
    inner = [point for point in points if window.start_s < point[0] < window.end_s]
    edges = [(at, _at(points, at)) for at in (window.start_s, window.end_s)]
    path = [edges[0], *inner, edges[1]]
    return sum((t1 - t0) * (v0 + v1) / 2 for (t0, v0), (t1, v1) in pairwise(path))


def _at(points: Sequence[tuple[float, float]], moment: float) -> float:
    """A column's value at a moment within it, between its samples by a straight line."""
    (t0, v0) = max(point for point in points if point[0] <= moment)
    (t1, v1) = min(point for point in points if point[0] >= moment)
    return v0 if t1 == t0 else v0 + (v1 - v0) * (moment - t0) / (t1 - t0)


def _energy_check(
    window: Window, counter: float | None, integral: float | None, limits: Limits
) -> Check | None:
    if counter is None or not integral:
        return None
    difference = 100 * (counter - integral) / integral
    agreed = abs(difference) <= limits.energy_percent
    reason = (
        f"At concurrency {window.concurrency} the GPUs took {counter:.4g} J by their counter and "
        f"{integral:.4g} J by the integral of their power: {difference:+.1f}%; {limits.energy_percent:g}% is "
        f"well, and beyond {limits.energy_flag_percent:g}% no energy is given."
    )
    return Check(
        what="energy", concurrency=window.concurrency, left_of=COUNTER, left=counter, right_of=INTEGRAL,
        right=integral, unit="J", difference=difference, difference_unit="%",
        ok_within=limits.energy_percent, flagged_within=None, verdict="ok" if agreed else "flagged",
        reason=None if agreed else reason,
    )  # fmt: skip


def _energy(window: Window, joules: float, source: Literal["counter", "integral"], on_gpu: bool) -> Energy:
    return Energy(
        concurrency=window.concurrency,
        source=source,
        of="GPUs" if on_gpu else "CPU packages",
        joules=joules,
        seconds=window.end_s - window.start_s,
        output_tokens=window.output_tokens,
        tokens_per_joule=window.output_tokens / joules,
    )


def _why_no_energy(telemetry: Telemetry, benchmark: Benchmark, on_gpu: bool) -> str:
    if not benchmark.energy_seconds:
        return "the study's benchmark.energy_seconds is 0"
    missing = {name: words for span in _of_servers(telemetry) for name, words in span.not_measured.items()}
    wanted = ("sampler", "energy_j", "power_w") if on_gpu else ("sampler", "package_j")
    words = [missing[name] for name in missing if name.endswith(wanted)]
    return "; ".join(dict.fromkeys(words)) or "no load of requests without a pause came to its end"
