"""The report's plots: SVG drawn from numbers alone, in colours that the page's theme decides.

Every mark that stands for a number carries that number's id (``data-number``),
so that a click on a dot leads to its source. The same content gives the same
bytes. Widths suit a phone; a wide page shows the plots side by side.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproquant.report.content import Content
from reproquant.report.numbers import Number
from reproquant.report.quality import Evaluation
from reproquant.report.sentences import Sentence, at, say
from reproquant.report.show import show_bare
from reproquant.report.subjects import Subject, believed

WIDTH_IN = 4.5
HEIGHT_IN = 3.4
LANE = 0.4
NAME_POINTS = 5.8
INKS = {"text": "#010101", "muted": "#020202", "grid": "#030303", "unranked": "#040404", "page": "#050505"}
SERIES = tuple(f"#06060{n}" for n in range(8))
THEME = {
    **{colour: f"var(--{name})" for name, colour in INKS.items()},
    **{colour: f"var(--series-{n})" for n, colour in enumerate(SERIES)},
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INKS["muted"],
    "axes.labelcolor": INKS["muted"],
    "axes.labelsize": 9.5,
    "text.color": INKS["text"],
    "xtick.color": INKS["muted"],
    "ytick.color": INKS["muted"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INKS["grid"],
    "grid.linewidth": 0.8,
}


@dataclass(frozen=True)
class Plot:
    """An SVG element and the sentence that says what it shows."""

    name: str
    title: Sentence
    svg: str


def plots(content: Content) -> tuple[Plot, ...]:
    """The plots that these results have figures for."""
    return _speed(content) + _quality(content)


def _quality(content: Content) -> tuple[Plot, ...]:
    compared = content.quality.compared if content.quality else ()
    if not content.quality or not compared:
        return ()
    best = ", ".join(one.artifact for one in content.quality.frontier)
    title = say(f"Size against divergence, lower left is better. Beaten in both by no other: {best}.")
    return (_plot("quality", title, lambda axes: _divergence(axes, compared), HEIGHT_IN),)


def _speed(content: Content) -> tuple[Plot, ...]:
    measured = [subject for subject in content.subjects if subject.levels]
    if not measured:
        return ()
    colours = {subject.name: SERIES[n % len(SERIES)] for n, subject in enumerate(measured)}
    single = at(content.concurrencies[0])
    tall = max(HEIGHT_IN, 0.7 + 0.7 * len(measured))
    title = say("Decoding {}: every dot is one round, the stroke is the median.", single)
    found = [_plot("decode", title, lambda axes: _decode(axes, measured, colours), tall)]
    if len(content.concurrencies) > 1:
        title = _output_title(content)
        found.append(_plot("output", title, lambda axes: _output(axes, measured, colours), HEIGHT_IN))
    title = say("How large the weights are, and how fast they decode {}.", single)
    found.append(_plot("size", title, lambda axes: _size(axes, measured, colours), HEIGHT_IN))
    return tuple(found)


def _output_title(content: Content) -> Sentence:
    held = [believed(content.subjects, "output_tok_per_s", level) for level in content.concurrencies]
    leaders = {max(pairs, key=lambda pair: _value(pair[1].median))[0].name for pairs in held if pairs}
    if not leaders:
        return say("Output by how many requests come at once; none of these subjects can be ranked.")
    if len(leaders) == 1:
        return say(
            f"By its medians, {leaders.pop()} gives the most output, however many requests come at once."
        )
    return say("Which subject's median output is highest depends on how many requests come at once.")


def _decode(axes: Axes, subjects: Sequence[Subject], colours: dict[str, str]) -> None:
    """A lane for each subject: its name, its rounds as dots from top to bottom, the median as a stroke."""
    for lane, subject in enumerate(subjects):
        spread = subject.single.figures["decode_tok_per_s"]
        colour = _ink(subject, colours)
        for row, number in enumerate(spread.rounds):
            height = lane + LANE * ((row + 0.5) / len(spread.rounds) - 0.5)
            _mark(axes, number, (_value(number), height), marker="o", markersize=5, color=colour, alpha=0.8)
        _mark(
            axes,
            spread.median,
            (_value(spread.median), lane),
            marker="|",
            markersize=26,
            markeredgewidth=1.6,
            color=colour,
        )
        axes.annotate(
            _label(subject, spread.median), (0, lane), xytext=(4, 19), textcoords="offset points", va="center"
        )
    axes.set_ylim(len(subjects) - 0.5, -0.85)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    _from_zero(
        axes,
        x=[number for subject in subjects for number in subject.single.figures["decode_tok_per_s"].rounds],
    )
    axes.set_xlabel("decode, tok/s")


def _output(axes: Axes, subjects: Sequence[Subject], colours: dict[str, str]) -> None:
    """A line through each subject's medians, every round a small dot, names at the lines' ends."""
    ends = []
    for subject in subjects:
        colour = _ink(subject, colours)
        levels = sorted(subject.levels, key=lambda level: level.concurrency.value)
        medians = [level.figures["output_tok_per_s"].median for level in levels]
        axes.plot(
            [_value(level.concurrency) for level in levels],
            [_value(n) for n in medians],
            color=colour,
            linewidth=2,
            linestyle="-" if subject.ranked else ":",
        )
        for level, median in zip(levels, medians, strict=True):
            for number in level.figures["output_tok_per_s"].rounds:
                _mark(
                    axes,
                    number,
                    (_value(level.concurrency), _value(number)),
                    marker="o",
                    markersize=3.5,
                    color=colour,
                    alpha=0.6,
                )
            _mark(
                axes,
                median,
                (_value(level.concurrency), _value(median)),
                marker="o",
                markersize=7,
                color=colour,
            )
        ends.append((medians[-1], levels[-1].concurrency, _name(subject), colour))
    _from_zero(
        axes,
        x=[end[1] for end in ends],
        y=[n for s in subjects for v in s.levels for n in v.figures["output_tok_per_s"].rounds],
    )
    axes.set_xticks(sorted({_value(level.concurrency) for subject in subjects for level in subject.levels}))
    _room_for_names(axes, [_name(subject) for subject in subjects])
    _side_labels(axes, [(_value(x), _value(y), name, colour) for y, x, name, colour in ends])
    axes.set_xlabel("requests at once")
    axes.set_ylabel("output, tok/s")


def _size(axes: Axes, subjects: Sequence[Subject], colours: dict[str, str]) -> None:
    """A dot for each subject, its name beside it."""
    decode = {subject.name: subject.single.figures["decode_tok_per_s"].median for subject in subjects}
    step, unit = (1e9, "GB") if max(_value(subject.size) for subject in subjects) >= 1e9 else (1e6, "MB")
    for subject in subjects:
        place = (_value(subject.size) / step, _value(decode[subject.name]))
        _mark(axes, decode[subject.name], place, marker="o", markersize=9, color=_ink(subject, colours))
    _from_zero(axes, y=list(decode.values()))
    axes.set_xlim(0, max(_value(subject.size) for subject in subjects) / step)
    _room_for_names(axes, [_name(subject) for subject in subjects])
    _side_labels(
        axes, [(_value(s.size) / step, _value(decode[s.name]), _name(s), _ink(s, colours)) for s in subjects]
    )
    axes.set_xlabel(f"size of the weights, {unit}")
    axes.set_ylabel("decode, tok/s")


def _divergence(axes: Axes, evaluations: Sequence[Evaluation]) -> None:
    """A dot for each artifact, its name beside it; what is beaten in both size and divergence is grey."""
    step, unit = (1e9, "GB") if max(_value(one.size) for one in evaluations) >= 1e9 else (1e6, "MB")
    inks = {one.artifact: SERIES[0] if one.unbeaten else INKS["unranked"] for one in evaluations}
    places = {
        one.artifact: (_value(one.size) / step, _value(kld)) for one in evaluations if (kld := one.divergence)
    }
    for one in evaluations:
        if one.divergence:
            _mark(
                axes,
                one.divergence,
                places[one.artifact],
                marker="o",
                markersize=9,
                color=inks[one.artifact],
            )
    _from_zero(axes, y=[one.divergence for one in evaluations if one.divergence])
    axes.set_xlim(0, max(place[0] for place in places.values()))
    _room_for_names(axes, list(places))
    _side_labels(axes, [(*place, name, inks[name]) for name, place in places.items()])
    axes.set_xlabel(f"size of the weights, {unit}")
    axes.set_ylabel("mean KL divergence from the original, nat")


def _value(number: Number) -> float:
    """The figure to draw; a bare figure has no source and is refused."""
    if not isinstance(number, Number):
        raise TypeError(f"a plot draws numbers with a source, not {number!r}")
    return number.value


def _mark(axes: Axes, number: Number, place: tuple[float, float], **style: Any) -> None:
    style = {"markeredgewidth": 0, "linestyle": "none", **style}
    axes.plot([place[0]], [place[1]], gid=f"number:{number.id}", clip_on=False, **style)


def _ink(subject: Subject, colours: dict[str, str]) -> str:
    """Grey is what can't be believed or says nothing about its format."""
    return colours[subject.name] if subject.believed else INKS["unranked"]


def _label(subject: Subject, median: Number) -> str:
    standing = "" if subject.standing == "ok" else f" ({subject.standing})"
    return f"{subject.name}{standing}  {show_bare(median)}"


def _name(subject: Subject) -> str:
    return f"{subject.name} (emulated)" if subject.emulated else subject.name


def _from_zero(axes: Axes, x: Sequence[Number] = (), y: Sequence[Number] = ()) -> None:
    if x:
        axes.set_xlim(0, max(map(_value, x)) * 1.06)
    if y:
        axes.set_ylim(0, max(map(_value, y)) * 1.12)


def _room_for_names(axes: Axes, names: Sequence[str]) -> None:
    """Widen the x axis so that the longest name fits to the right of the last point."""
    share = (12 + NAME_POINTS * max(map(len, names))) / (72 * WIDTH_IN - 50)
    axes.set_xlim(0, axes.get_xlim()[1] / (1 - min(share, 0.6)))


def _side_labels(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Names to the right of their points, moved apart where they would touch: upwards, down from the top."""
    ends = sorted(ends, key=lambda end: (end[1], end[2]))
    top = axes.get_ylim()[1]
    heights = _apart([y for _, y, _, _ in ends], 0.062 * top, 0.98 * top)
    for (x, _, name, colour), height in zip(ends, heights, strict=True):
        axes.annotate(name, (x, height), xytext=(9, 0), textcoords="offset points", va="center", color=colour)


def _apart(heights: Sequence[float], least: float, top: float) -> list[float]:
    """Rising heights, at least ``least`` from each other and none above ``top``, near where they were."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + least) if placed else height)
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], top)
        top = placed[place] - least
    return placed


def _plot(name: str, title: Sentence, draw: Callable[[Axes], None], height_in: float) -> Plot:
    return drawn(name, title, lambda figure: draw(figure.add_subplot()), height_in)


def drawn(name: str, title: Sentence, draw: Callable[[Figure], None], height_in: float) -> Plot:
    """A plot of its name and title, as ``draw`` fills the figure."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return Plot(name, title, _for_page(buffer.getvalue(), name))


def _for_page(document: str, name: str) -> str:
    """matplotlib's document as an element of a page: themed, its numbers marked, no clashing ids."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<g id="number:([^"]+)"', r'<g class="mark" data-number="\1" tabindex="0" role="button"', svg
    )
    svg = re.sub(r' id="((?!m|p)[a-z0-9_.]+|(?:patch|matplotlib|text)[a-z0-9_.]*)"', "", svg)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'class="plot" data-plot="{name}"', svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]+; ", "", svg)
    svg = re.sub(r' (?:d|x|y|transform)="[^"]*"', _shortened, svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", svg)
    svg = re.sub(r"<g>\n(<(?:use|text) [^\n]*>)\n</g>", r"\1", svg)
    for colour, variable in THEME.items():
        svg = svg.replace(colour, variable)
    return svg.strip()


def _shortened(attribute: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point, which nobody sees, instead of a millionth.

    After ``M`` further points are lines without saying so, up to a curve.
    """
    text = re.sub(r"\d+\.\d+", lambda figure: f"{float(figure[0]):.2f}".rstrip("0").rstrip("."), attribute[0])
    return text if "C" in text else re.sub(r"\s*\nL ", " ", text)
