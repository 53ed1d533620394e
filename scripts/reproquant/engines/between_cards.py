"""How cards exchange data: what an engine's log says of it, and the shell's variables that decide it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from reproquant.engines.refusals import QUOTE_CHARACTERS, known_words

TABLE = Path(__file__).with_name("between_cards.yaml")
PREFIXES = ("NCCL_", "NVSHMEM_", "TORCH_NCCL_", "TORCH_SYMM_MEM_", "GGML_CUDA_")
"""How names of variables begin that decide how cards exchange data, multicast over NVLink included."""

NAME_A_HOST = ("NCCL_COMM_ID", "NCCL_HOSTID")
"""Variables that tell a host's name or address; the cards of one host do without them."""


@dataclass(frozen=True)
class Said:
    """Words of an engine's log, and what they tell."""

    about: str
    words: str


def said(engine: str, log: str) -> list[Said]:
    """What an engine's log says of its way between cards, each wording once; commands in it are ours."""
    own = "\n".join(line for line in log.splitlines() if not line.startswith("$ "))
    found = []
    for known in known_words(TABLE):
        if known.engine == engine:
            wordings = dict.fromkeys(match.group().strip() for match in re.finditer(known.pattern, own))
            found += [Said(known.meaning, words[:QUOTE_CHARACTERS]) for words in wordings]
    return found


def handed_on() -> dict[str, str]:
    """Those variables of this process's environment that an engine gets, in a container as well."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) and name not in NAME_A_HOST
    }
