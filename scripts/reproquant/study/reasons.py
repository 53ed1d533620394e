"""What pydantic says of a study file, in words that tell what to write instead."""

from __future__ import annotations

import re

from pydantic import ValidationError

REMEDIES = (
    (
        r"^environments\.\w+\.python$",
        "give the interpreter's path, such as /opt/vllm/bin/python",
    ),
    (
        r"revision$",
        "a branch or a tag moves, so results could not be reproduced; give the commit's 40 hex digits",
    ),
    (r"commit$", "give the commit's 40 hex digits"),
    (r"version$", "give one exact version such as 0.9.2; a range or 'latest' would change under the results"),
    (r"sha256$", "give the file's sha256, 64 hex digits"),
    (
        r"^environments\.vllm\.container\.image$",
        "a tag moves, 'latest' above all; give NAME@sha256:… as 'docker image inspect NAME:TAG' (or podman) "
        "prints it under RepoDigests",
    ),
    (r"quantizations\.\d+$", "give a type that llama-quantize knows, such as Q4_K_M"),
)


def reasons(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"] if not str(part).startswith("(")) or "the study"
        own = {
            "extra_forbidden": "there is no such key",
            "value_error": str(item.get("ctx", {}).get("error")),
        }
        message = own.get(item["type"], item["msg"])
        given = "" if item["type"] in ("missing", "extra_forbidden") else f" (given: {item['input']!r})"
        remedy = next((text for pattern, text in REMEDIES if re.search(pattern, path)), None)
        lines.append(f"{path}: {message}{given}" + (f"; {remedy}" if remedy and given else ""))
    return "\n       ".join(lines)
