"""One way in to all model sources: the study's section picks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproquant.errors import StudyError
from reproquant.model import embedded, hub, local, synthetic
from reproquant.study import Checkpoint, EmbeddedModel, HubModel, LocalModel, Model, SyntheticModel


def fetch(
    model: Model | Checkpoint,
    target: Path,
    log: Path,
    tell: Callable[[str], None],
    tokenizer_gguf: Path | None = None,
) -> dict[str, Any]:
    """Fill the folder ``target`` with the checkpoint and return what the manifest says of its source.

    ``tell`` gets lines of progress; ``tokenizer_gguf`` holds the vocabulary that synthetic weights get.
    """
    match model.spec:
        case HubModel() as spec:
            return hub.download(spec, target, tell)
        case LocalModel() as spec:
            return local.link(spec, target)
        case EmbeddedModel() as spec:
            return embedded.make(spec, target, log)
        case SyntheticModel() as spec if tokenizer_gguf:
            return synthetic.make(spec, tokenizer_gguf, target)
    raise StudyError(
        "model.source", f"'{model.source}' needs a vocabulary to be made with", "fetch llama.cpp first"
    )
