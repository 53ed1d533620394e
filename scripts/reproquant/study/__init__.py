"""The study: one validated description of a model, tools, artifacts and subjects.

This is the only reader of study files. Everything else gets a ``Study`` or a
slice of one. Where several kinds of a thing exist (a model's source, llama.cpp's
source), each kind has its own section and one key picks it, so that a study laid
over another need not unset what it doesn't use; unpicked sections are dropped
from the resolved study.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reproquant.errors import StudyError
from reproquant.files import read_json, repository
from reproquant.study.checks import CHECKS
from reproquant.study.files import laid_over, lock_path, read_yaml
from reproquant.study.reasons import reasons
from reproquant.study.sections import (
    EXTERNAL,
    SOURCES,
    Benchmark,
    Calibration,
    Checkpoint,
    Container,
    EmbeddedModel,
    External,
    Fp8,
    GitSource,
    HubModel,
    InContainer,
    Limits,
    LlamaCpp,
    LocalModel,
    Model,
    PositiveInt,
    Quality,
    Role,
    SdistSource,
    Shape,
    Slug,
    Subject,
    SyntheticModel,
    Vllm,
)
from reproquant.study.whole import Whole

__all__ = [
    "EXTERNAL",
    "Benchmark",
    "Calibration",
    "Checkpoint",
    "Container",
    "EmbeddedModel",
    "External",
    "Fp8",
    "GitSource",
    "HubModel",
    "InContainer",
    "Limits",
    "LlamaCpp",
    "LocalModel",
    "Model",
    "PositiveInt",
    "Quality",
    "Role",
    "SdistSource",
    "Shape",
    "Slug",
    "Study",
    "Subject",
    "SyntheticModel",
    "Vllm",
    "laid_over",
    "lock_path",
    "read_yaml",
]


class Study(Whole):
    """Everything that the workflow is told."""

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a resolved study (``results/<study>/study.json``)."""
        return cls.resolve(read_json(path), str(path))

    @classmethod
    def of_files(cls, files: Sequence[Path]) -> Study:
        """Lay study files over config.yaml as Snakemake's ``--configfile`` does, and resolve the result."""
        config: dict[str, Any] = read_yaml(repository() / "config.yaml")
        for file in files:
            config = laid_over(config, read_yaml(file))
        return cls.resolve(config, ", ".join(map(str, files)) or "config.yaml")

    @classmethod
    def resolve(cls, config: dict[str, Any], where: str = "config") -> Study:
        """Validate a merged configuration and drop the sections it doesn't pick.

        Raises StudyError with one line for each wrong key: its path, what is
        wrong, what to write instead.
        """
        try:
            study = cls.model_validate_json(json.dumps(config))
        except ValidationError as error:
            raise StudyError(
                where,
                reasons(error),
                "mend the keys named above; every key is explained in config.yaml "
                "and workflow/schemas/study.schema.json",
            ) from None
        for check in CHECKS:
            check(study, where)
        return study._pruned()

    def dump(self) -> dict[str, Any]:
        """The resolved study as JSON data."""
        return self.model_dump(mode="json", exclude_none=True)

    def _pruned(self) -> Study:
        data = self.dump()
        for section, kinds in SOURCES.items():
            for kind in set(kinds) - {data[section]["source"]}:
                data[section].pop(kind, None)
        served = {subject.artifact for subject in self.subjects}
        data["checkpoints"] = {
            name: {key: one[key] for key in ("quantization", "source", one["source"])}
            for name, one in data["checkpoints"].items()
            if name in served
        }
        return type(self).model_validate_json(json.dumps(data))
