"""The report as one HTML file that needs nothing else: style, plots and script are inside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from reproquant.provenance.record import record_of
from reproquant.report.content import Content
from reproquant.report.explain import Node, chain, requests
from reproquant.report.numbers import Number, Quote, Source
from reproquant.report.plots import Plot
from reproquant.report.show import exact, show, show_bare
from reproquant.report.subjects import Spread
from reproquant.report.templating import environment, render


def render_html(content: Content, plots: Sequence[Plot], templates: Path, results: Path) -> str:
    """The page; every number on it is a link to its row in the page's list of sources.

    What `reproquant explain` tells of a number is in the page, too.
    """
    jinja = environment(templates, number=_number, quote=_quote, escape=escape)
    jinja.autoescape = True
    jinja.filters |= {"bare": _bare, "exact": _exact, "range": _range, "svg": _svg, "anchor": anchor}
    figure_columns = str(3 + len(content.concurrencies))
    return render(
        jinja,
        "index.html.j2",
        content=content,
        plots=plots,
        figure_columns=figure_columns,
        chains=_chains(content, results),
        requests=_requests(content, results),
    )


def anchor(id: str) -> str:
    """The fragment of a number's row in the list of sources."""
    return f"number:{id}"


def _chains(content: Content, results: Path) -> tuple[tuple[str, Markup], ...]:
    """For each file with a record that numbers come from: what it was made from."""
    recorded = [path for path in content.numbers.files() if record_of(results / path, results)]
    return tuple((path, _tree(chain(results, path))) for path in recorded)


def _requests(content: Content, results: Path) -> tuple[tuple[str, Markup], ...]:
    """For each figure of a measurement: its rounds with their requests."""
    sourced = [(number.id, number.origin) for number in content.numbers if isinstance(number.origin, Source)]
    found = ((id, requests(results, origin.path, origin.pointer)) for id, origin in sourced)
    return tuple((id, Markup("").join(map(_tree, nodes))) for id, nodes in found if nodes)


def _tree(node: Node) -> Markup:
    """A node as a list entry that can be unfolded."""
    facts = Markup("").join(
        Markup("<li><span>{}</span> {}</li>").format(
            name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        )
        for name, value in node.facts.items()
        if value not in (None, {}, [])
    )
    causes = Markup("").join(map(_tree, node.causes))
    return Markup("<details><summary>{}</summary><ul>{}</ul>{}</details>").format(node.title, facts, causes)


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
