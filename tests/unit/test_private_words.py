"""No token, user name, home folder or place of the checkout gets into records, root, report or crate."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from finished_study import finish
from reproquant.cli import app
from reproquant.files import read_json, repository
from reproquant.machine import host
from reproquant.provenance.crate import export

TOKENS = {
    "HF_TOKEN": "hf_PlantedTokenOfTheTest0123456789",
    "GITHUB_TOKEN": "ghp_PlantedTokenOfTheTest0123456789",
    "AWS_SECRET_ACCESS_KEY": "PlantedSecretOfTheTest/0123456789",
}
USER = "planted-user-name"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a user with secrets in the environment."""
    home = tmp_path / USER
    for name, value in {**TOKENS, "HOME": str(home), "USER": USER, "LOGNAME": USER}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("REPROQUANT_STORE", str(home / ".cache/reproquant"))
    return home


def test_records_root_report_and_crate_tell_nothing_of_who_made_them(home: Path) -> None:
    results = finish(home)
    assert CliRunner().invoke(app, ["audit", str(results)]).exit_code == 0
    export(results, home / "crate")
    private = [*TOKENS.values(), USER, str(home), str(repository())]
    files = [path for folder in (results, home / "crate") for path in folder.rglob("*") if path.is_file()]
    assert len([path for path in files if path.name.endswith(".prov.json")]) > 20
    for path in files:
        content = path.read_bytes()
        for text in private:
            assert text.encode() not in content, f"'{text}' stands in {path}"


def test_a_record_has_no_host_name_and_no_environment_variables(home: Path) -> None:
    record = read_json(finish(home) / "gguf/f16.gguf.prov.json")
    definition = record["predicate"]["buildDefinition"]
    assert definition["internalParameters"].keys() == {"git", "python", "platform", "stored"}
    assert definition["internalParameters"]["platform"].keys() == {"system", "release", "machine"}


def test_command_lines_and_evidence_are_shown_without_private_folders(home: Path) -> None:
    said = {"command": [f"{home}/.cache/reproquant/builds/x/llama-server", f"--model={home}/m.gguf"]}
    assert host.without_private_paths(said) == {
        "command": ["<store>/builds/x/llama-server", "--model=~/m.gguf"]
    }
