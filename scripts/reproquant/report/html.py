"""The report as one HTML file that needs nothing else: style, plots and script are inside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from reproquant.report.content import Content
from reproquant.report.numbers import Number, Quote
from reproquant.report.plots import Plot
from reproquant.report.show import exact, show, show_bare
from reproquant.report.subjects import Spread
from reproquant.report.templating import environment, render


def render_html(content: Content, plots: Sequence[Plot], templates: Path) -> str:
    """The page; every number on it is a link to its row in the page's list of sources."""
    jinja = environment(templates, number=_number, quote=_quote, escape=escape)
    jinja.autoescape = True
    jinja.filters |= {"bare": _bare, "exact": _exact, "range": _range, "svg": _svg, "anchor": anchor}
    figure_columns = str(3 + len(content.concurrencies))
    return render(jinja, "index.html.j2", content=content, plots=plots, figure_columns=figure_columns)


def anchor(id: str) -> str:
    """The fragment of a number's row in the list of sources."""
    return f"number:{id}"


def _number(number: Number) -> Markup:
    return _link(number, show(number))


def _bare(number: Number) -> Markup:
    return _link(number, show_bare(number))


def _link(number: Number, text: str) -> Markup:
    return Markup('<a class="number" href="#{}" data-number="{}" title="{}">{}</a>').format(
        anchor(number.id), number.id, exact(number), text
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
