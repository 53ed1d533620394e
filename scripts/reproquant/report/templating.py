"""Jinja set up so that a template can't show a figure without a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from reproquant.errors import FormatError
from reproquant.report.numbers import Number, Quote


def environment(
    templates: Path,
    number: Callable[[Number], str],
    quote: Callable[[Quote], str],
    escape: Callable[[str], str],
) -> Environment:
    """An environment whose ``{{ … }}`` takes numbers, quotes, text, and sequences of these.

    ``number`` and ``quote`` write one for the page, ``escape`` makes plain text
    safe for it. Anything else, a bare int or float above all, raises FormatError.
    """

    def finalize(value: Any) -> str:
        if isinstance(value, Number):
            return number(value)
        if isinstance(value, Quote):
            return quote(value)
        if isinstance(value, str):
            return escape(value)
        if isinstance(value, tuple):
            return escape("").join(map(finalize, value))
        _refuse(value)

    return Environment(
        loader=FileSystemLoader(templates),
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(jinja: Environment, name: str, **values: Any) -> str:
    """The template filled in; raises FormatError for a template that is wrong."""
    try:
        return jinja.get_template(name).render(**values)
    except TemplateError as error:
        raise FormatError(
            f"template {name}", str(error), "correct the template in workflow/report"
        ) from error


def _refuse(value: object) -> NoReturn:
    raise FormatError(
        "a report template",
        f"it would show {value!r}, which is neither text nor a number with a source",
        "take the number through the report's registry (reproquant.report.numbers.Numbers) and show that",
    )
