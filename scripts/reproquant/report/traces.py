"""What the machine did while a subject was measured, drawn from its telemetry file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from pydantic import ValidationError

from reproquant.bench.telemetry import Span, Telemetry
from reproquant.errors import FormatError
from reproquant.provenance.lineage import pointer
from reproquant.report.content import Content
from reproquant.report.numbers import Numbers, Series
from reproquant.report.plots import INKS, SERIES, Plot, drawn
from reproquant.report.sentences import say

PANEL_IN = 0.85
POINTS = 200
UNSEEN = 0.001
CARD_PANELS = (
    ("utilization_percent", "load, %", 1.0),
    ("memory_bytes", "memory, GB", 1e9),
    ("power_w", "power, W", 1.0),
    ("sm_mhz", "SM clock, MHz", 1.0),
    ("temperature_c", "°C", 1.0),
)
HOST_PANELS = (
    ("server_cores", "server, cores", 1.0),
    ("busy_cores", "all, cores", 1.0),
    ("rss_bytes", "memory, GB", 1e9),
    ("frequency_mhz", "clock, MHz", 1.0),
)


@dataclass(frozen=True)
class _Line:
    """A column of one span over its times, for the card of that index or the host (None)."""

    times: Series
    column: Series
    card: int | None


def traces(content: Content) -> tuple[Plot, ...]:
    """A plot for each subject that was watched."""
    names = [subject.name for subject in content.subjects if subject.efficiency]
    return tuple(plot for name in names if (plot := _trace(content.numbers, name)))


def _trace(numbers: Numbers, name: str) -> Plot | None:
    path = f"bench/{name}.telemetry.json"
    if not numbers.has(path):
        return None
    try:
        telemetry = Telemetry.model_validate(numbers.read(path))
    except ValidationError as error:
        raise FormatError(path, f"it is no telemetry: {error}", "measure the subject again") from None
    spans = [(place, span) for place, span in enumerate(telemetry.spans) if span.what == "server"]
    on_cards = any(card.used for _, span in spans for card in span.cards)
    panels = [
        (label, scale, lines)
        for column, label, scale in (CARD_PANELS if on_cards else HOST_PANELS)
        if (lines := _lines(numbers, path, spans, column, on_cards))
    ]
    if not panels:
        return None
    shades = [
        tuple(
            numbers.series(path, pointer("spans", place, "windows"), "s", key) for key in ("start_s", "end_s")
        )
        for place, _ in spans
    ]
    title = say(f"{name} in each launch, from before its start to its end; shaded is what was measured.")
    return drawn(
        f"telemetry-{name}",
        title,
        lambda figure: _draw(figure, panels, shades),
        0.45 + PANEL_IN * len(panels),
    )


def _lines(
    numbers: Numbers, path: str, spans: Sequence[tuple[int, Span]], column: str, on_cards: bool
) -> list[_Line]:
    found = []
    for place, span in spans:
        times = numbers.series(path, pointer("spans", place, "time_s"), "s")
        if not on_cards and column in span.host:
            at = pointer("spans", place, "host", column)
            found.append(_Line(times, numbers.series(path, at, ""), None))
        for number, card in enumerate(span.cards if on_cards else ()):
            if column in card.columns:
                at = pointer("spans", place, "cards", number, "columns", column)
                found.append(_Line(times, numbers.series(path, at, ""), card.index))
    return found


def _draw(
    figure: Figure, panels: Sequence[tuple[str, float, list[_Line]]], shades: Sequence[tuple[Series, ...]]
) -> None:
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for (axes,), (label, scale, lines) in zip(rows, panels, strict=True):
        _panel(axes, label, scale, lines, shades)
    cards = sorted({line.card for _, _, lines in panels for line in lines if line.card is not None})
    if len(cards) > 1:
        figure.legend(
            handles=[rows[0][0].plot([], [], color=_ink(card))[0] for card in cards],
            labels=[f"GPU {card}" for card in cards],
            loc="outside upper right",
            ncols=len(cards),
            frameon=False,
        )
    figure.align_ylabels()
    rows[-1][0].set_xlabel("s")


def _panel(
    axes: Axes, label: str, scale: float, lines: Sequence[_Line], shades: Sequence[tuple[Series, ...]]
) -> None:
    spans = [
        Path([(start, 0), (start, 1), (end, 1), (end, 0), (start, 0)], closed=True)
        for start, end in _joined(shades)
    ]
    if spans:
        shade = {"color": INKS["grid"], "linewidth": 0, "transform": axes.get_xaxis_transform()}
        axes.add_patch(PathPatch(Path.make_compound_path(*spans), **shade))
    for line in lines:
        axes.plot(*_thinned(line, scale), color=_ink(line.card or 0), linewidth=1.2)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.set_xlim(left=0)
    axes.grid(visible=False)
    axes.set_ylabel(label, rotation=0, ha="right", va="center")


def _joined(shades: Sequence[tuple[Series, ...]]) -> list[tuple[float, float]]:
    """From when to when was measured, in order; with less than ``UNSEEN`` of it all between, two are one."""
    windows = sorted(
        (start, end)
        for starts, ends in shades
        for start, end in zip(starts.values, ends.values, strict=True)
        if start is not None and end is not None
    )
    joined: list[tuple[float, float]] = []
    for start, end in windows:
        if joined and start - joined[-1][1] < windows[-1][1] * UNSEEN:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _thinned(line: _Line, scale: float) -> tuple[list[float], list[float]]:
    """Times and values of at most ``POINTS`` points, each the mean of neighbours."""
    pairs = [
        (at, value / scale)
        for at, value in zip(line.times.values, line.column.values, strict=True)
        if at is not None and value is not None
    ]
    step = -(-len(pairs) // POINTS) or 1
    groups = [pairs[start : start + step] for start in range(0, len(pairs), step)]
    return [fmean(at for at, _ in group) for group in groups], [
        fmean(value for _, value in group) for group in groups
    ]


def _ink(card: int) -> str:
    return SERIES[card % len(SERIES)]
