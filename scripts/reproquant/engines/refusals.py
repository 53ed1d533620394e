"""Tell an engine that refuses this machine from one that failed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from reproquant.errors import ReproquantError

TABLE = Path(__file__).with_name("refusals.yaml")
QUOTE_CHARACTERS = 600
CAUSE = re.compile(
    r"\b\w*(Error|Exception|error)\b\s*:|\berror\b.*\bfailed\b|terminate called|Segmentation fault"
)
CAUSE_LINES = 6


class Unsupported(ReproquantError):
    """An engine refused this machine; ``evidence`` is the line of its log that says so."""

    def __init__(self, where: object, meaning: str, evidence: str) -> None:
        super().__init__(where, meaning, "use an engine, an artifact or a GPU that fits")
        self.evidence = evidence


class Known(BaseModel):
    """One entry of a table of an engine's words, such as refusals.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: str
    engine: Literal["llama_cpp", "vllm"]
    meaning: str


@dataclass(frozen=True)
class Refusal:
    """What a refusal means, and the engine's own words for it."""

    meaning: str
    evidence: str


def classify(engine: str, log: str) -> Refusal | None:
    """The refusal that a failed server's log holds, or None for any other failure."""
    for known in known_words(TABLE):
        if known.engine == engine and (match := re.search(known.pattern, log)):
            return Refusal(known.meaning, _line_around(log, match.start()))
    return None


def last_words(log: str) -> str:
    """The lines of a failed server's log that name an error; its last lines if none does.

    The last line alone seldom says why: vLLM ends with "Engine core
    initialization failed" and has named the cause far above.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    causes = [line for line in lines if CAUSE.search(line)]
    return "\n".join(line[:QUOTE_CHARACTERS] for line in (causes or lines)[-CAUSE_LINES:])


@cache
def known_words(table: Path) -> list[Known]:
    """The entries of a table of engines' words."""
    data = yaml.safe_load(table.read_text(encoding="utf-8"))
    return TypeAdapter(list[Known]).validate_python(data)


def _line_around(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()[:QUOTE_CHARACTERS]
