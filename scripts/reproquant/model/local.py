"""A checkpoint that lies in a directory of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproquant.errors import FormatError
from reproquant.files import read_json, repository
from reproquant.study import LocalModel

INDEX = "model.safetensors.index.json"
NO_INDEX = f"a whole {INDEX}"
"""Among what is missing: there is such a file, and it doesn't list shards."""
NOTE = "A directory of the machine that ran this; the manifest's digests say which bytes it held."


def link(spec: LocalModel, target: Path) -> dict[str, Any]:
    """Link the directory's files into ``target`` one by one and return the manifest's ``source``.

    ``spec.path`` is absolute or relative to the repository. Only its top level
    counts, without hidden files. Raises FormatError if it is no whole checkpoint.
    """
    source = (repository() / Path(spec.path).expanduser()).resolve()
    if not source.is_dir():
        raise FormatError(f"local.path: {source}", "there is no such directory", "correct the path")
    if missing := missing_parts(source):
        raise FormatError(
            f"local.path: {source}",
            f"it is no whole Hugging Face checkpoint: it lacks {', '.join(missing)}",
            "give a directory as save_pretrained() of model and tokenizer leaves it",
        )
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and not path.name.startswith("."):
            (target / path.name).symlink_to(path)
    return {"kind": "local", "licence": spec.licence, "note": NOTE}


def missing_parts(directory: Path) -> list[str]:
    """What a directory lacks to be a checkpoint: config.json, a tokenizer, weights that its index lists."""
    names = {path.name for path in directory.iterdir() if path.is_file()}
    missing = [] if "config.json" in names else ["config.json"]
    if not names & {"tokenizer.json", "tokenizer.model"}:
        missing.append("tokenizer.json or tokenizer.model")
    if INDEX in names:
        try:
            missing += sorted(set(read_json(directory / INDEX)["weight_map"].values()) - names)
        except (ValueError, LookupError, TypeError, AttributeError):
            missing.append(NO_INDEX)
    elif not any(name.endswith(".safetensors") for name in names):
        missing.append("*.safetensors")
    return missing
