"""The report as one HTML file that needs nothing else: style, plots, script and lineages are inside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from reproquant.report.content import Content
from reproquant.report.entries import Entries, Gathering
from reproquant.report.numbers import Number, Numbers, Quote, Source
from reproquant.report.pieces import pieces
from reproquant.report.plots import Plot
from reproquant.report.show import exact, show, show_bare
from reproquant.report.subjects import Spread
from reproquant.report.templating import environment, render


def render_html(content: Content, plots: Sequence[Plot], templates: Path, results: Path) -> str:
    """The page; every number on it is a link to its row in the page's list of sources.

    What `reproquant explain` tells of a number is in the page, too: see `report.pieces`.
    """
    jinja = environment(templates, number=_number, quote=_quote, escape=escape)
    jinja.autoescape = True
    jinja.filters |= {"bare": _bare, "exact": _exact, "range": _range, "svg": _svg, "anchor": anchor}
    jinja.filters["gathered"] = Gathering().gather
    jinja.tests["entries"] = lambda value: isinstance(value, Entries)
    figure_columns = str(3 + len(content.concurrencies))
    return render(
        jinja,
        "index.html.j2",
        content=content,
        plots=plots,
        figure_columns=figure_columns,
        sources=_sources(content.numbers),
        computed=[number for number in content.numbers if not isinstance(number.origin, Source)],
        pieces=_embedded(pieces(content.numbers, results)),
    )


def anchor(id: str) -> str:
    """The fragment of a number's row in the list of sources."""
    return f"number:{id}"


def _sources(numbers: Numbers) -> tuple[tuple[str, str, list[Number]], ...]:
    """Every file that was read with its sha256 and the numbers that stand there, in order of appearance."""
    read: dict[str, list[Number]] = {path: [] for path in numbers.files()}
    for number in numbers:
        if isinstance(number.origin, Source):
            read[number.origin.path].append(number)
    return tuple((path, digest, read[path]) for path, digest in numbers.files().items())


def _embedded(data: object) -> Markup:
    """JSON that can stand in a script element: no text in it can end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _number(number: Number) -> Markup:
    return _link(number, show(number))


def _bare(number: Number) -> Markup:
    return _link(number, show_bare(number))


def _link(number: Number, text: str) -> Markup:
    return Markup('<a class="number" href="#{}" title="{}">{}</a>').format(
        anchor(number.id), exact(number), text
    )


def _exact(number: Number) -> Markup:
    return escape(exact(number))


def _range(spread: Spread) -> Markup:
    return Markup('<span class="range">[{}\u2013{}]</span>').format(_bare(spread.low), _bare(spread.high))


def _quote(quote: Quote) -> Markup:
    source = f"{quote.source.path} {quote.source.pointer}"
    return Markup('<span class="quote" title="{}">{}</span>').format(source, quote.text)


def _svg(plot: Plot) -> Markup:
    return Markup(plot.svg)
