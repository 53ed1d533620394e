"""The report as Markdown, for a terminal, a pull request or a mail."""

from __future__ import annotations

import re
from pathlib import Path

from reproquant.report.content import Content
from reproquant.report.numbers import Number, Quote
from reproquant.report.show import exact, show, show_bare
from reproquant.report.subjects import Spread
from reproquant.report.templating import environment, render


class Plain(str):
    """Text that is Markdown already."""


def render_markdown(content: Content, templates: Path) -> str:
    """The same findings as the page; at its end stands the source of each number that it shows."""
    shown: dict[str, Number] = {}

    def note(number: Number, text: str) -> Plain:
        shown.setdefault(number.id, number)
        return Plain(text)

    def bare(number: Number) -> Plain:
        return note(number, show_bare(number))

    def span(spread: Spread) -> Plain:
        return Plain(f"{bare(spread.median)} [{bare(spread.low)}\u2013{bare(spread.high)}]")

    jinja = environment(
        templates,
        number=lambda number: note(number, show(number)),
        quote=lambda quote: _escape(_one_line(quote)),
        escape=_escape,
    )
    jinja.filters |= {
        "bare": bare,
        "span": span,
        "code": _code,
        "block": _block,
        "exact": lambda number: Plain(exact(number)),
    }
    return render(jinja, "report.md.j2", content=content, shown=lambda: list(shown.values()))


def _one_line(quote: Quote) -> str:
    return " ".join(quote.text.split())


def _escape(text: str) -> Plain:
    return text if isinstance(text, Plain) else Plain(re.sub(r"([\\`*_|<\[\]])", r"\\\1", text))


def _code(text: str) -> Plain:
    return Plain(f"`{text}`".replace("|", "\\|"))


def _block(quote: Quote) -> Plain:
    """The words as an indented code block."""
    return Plain("\n".join(f"    {line}" for line in quote.text.splitlines()))
