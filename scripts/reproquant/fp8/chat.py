"""A text as conversations in a checkpoint's own chat template, as an engine would feed them to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from reproquant.errors import FormatError
from reproquant.files import read_json

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_RAW = "calibrate on the plain text (fp8.calibration.form: raw)"


def conversations(checkpoint: Path, text: str) -> str:
    """The text's paragraphs in pairs, each pair rendered as a question and its answer.

    Paragraphs are separated by empty lines; an odd last one is left out. The
    template gets no clock (``strftime_now``), so the result doesn't depend on
    the day. Raises FormatError if the checkpoint has no chat template or it
    can't be rendered.
    """
    template, where = _template(checkpoint)
    config = _config(checkpoint)
    special = {name: _content(config[name]) for name in SPECIAL if config.get(name)}
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    pairs = zip(paragraphs[::2], paragraphs[1::2], strict=False)
    try:
        render = _environment().from_string(template).render
        return "".join(
            render(
                messages=[{"role": "user", "content": asked}, {"role": "assistant", "content": answered}],
                add_generation_prompt=False,
                **special,
            )
            for asked, answered in pairs
        )
    except TemplateError as error:
        raise FormatError(where, f"its chat template can't be rendered: {error}", _RAW) from error


def _environment() -> ImmutableSandboxedEnvironment:
    """jinja2 as transformers sets it up for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _refuse
    return environment


def _refuse(reason: str) -> None:
    raise TemplateError(reason)


def _template(checkpoint: Path) -> tuple[str, Path]:
    """The template and the file that it stands in."""
    file = checkpoint / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8"), file
    where = checkpoint / "tokenizer_config.json"
    found = _config(checkpoint).get("chat_template")
    if isinstance(found, list):
        found = next((one["template"] for one in found if one["name"] == "default"), None)
    if not found:
        raise FormatError(where, "it has no chat template", _RAW)
    return str(found), where


def _config(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / "tokenizer_config.json"
    return dict(read_json(file)) if file.is_file() else {}


def _content(token: Any) -> str:
    """A special token is written as its text or as an object around it."""
    return str(token["content"] if isinstance(token, dict) else token)
