"""The audit's list of artifacts is the one that the rules make."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from reproquant.files import repository
from reproquant.provenance.artifacts import artifacts
from reproquant.study import Study

ROOT = repository()
SNAKEMAKE = Path(sys.executable).with_name("snakemake")


def merged(base: dict, over: dict) -> dict:
    """Two configurations as Snakemake lays one over the other."""
    both = {
        key: merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in over.items()
    }
    return {**base, **both}


def of_rules(folder: Path, study: str, *configs: Path) -> dict[str, tuple[str, set[str]]]:
    """Rule and inputs of every output, by its path in the results directory, as a dry run tells them."""
    command = [SNAKEMAKE, "--snakefile", ROOT / "Snakefile", "--directory", folder, "--cores", "1", "-n"]
    said = subprocess.run(
        [*command, "--quiet", "reason", "--configfile", *configs],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    found = {}
    for block in re.split(r"^(?:local)?rule ", said, flags=re.MULTILINE)[1:]:
        lists = {
            key: {path.removeprefix(f"results/{study}/") for path in paths.split(", ")}
            for key, paths in re.findall(r"^    (input|output): (.+)$", block, re.MULTILINE)
        }
        rule = block.partition(":")[0]
        found |= {path: (rule, lists.get("input", set())) for path in lists.get("output", ())}
    return found


@pytest.mark.parametrize(
    "name", ["config.yaml", "workflow/studies/tiny.yaml", "workflow/studies/embedded.yaml"]
)
def test_the_audit_knows_every_artifact_with_its_inputs(name: str, tmp_path: Path) -> None:
    configs = list(dict.fromkeys([ROOT / "config.yaml", ROOT / name]))
    config: dict = {}
    for path in configs:
        config = merged(config, yaml.safe_load(path.read_text()))
    study = Study.resolve(config)
    expected = {
        output: (artifact.stage, set(artifact.needs))
        for artifact in artifacts(study)
        for output in (*artifact.outputs.values(), artifact.record)
    }
    found = of_rules(tmp_path, study.name, *configs)
    assert {output: made for output, made in found.items() if made[0] != "seal"} == expected
