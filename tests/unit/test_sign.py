"""Signatures over the root, with a key made here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from finished_study import finish
from reproquant.cli import app
from reproquant.errors import FormatError, ToolError
from reproquant.files import write_json
from reproquant.provenance.sign import sign, signer


def make_key(folder: Path, name: str) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name], check=True
    )
    return folder / name


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_json(tmp_path / "results/root.json", {"records": {}})
    return tmp_path / "results"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path, "own")


@pytest.fixture
def allowed(tmp_path: Path, key: Path) -> Path:
    path = tmp_path / "allowed_signers"
    path.write_text(f"me@example.org {key.with_suffix('.pub').read_text()}")
    return path


def test_a_signed_root_names_its_signer(results: Path, key: Path, allowed: Path) -> None:
    assert sign(results, key) == results / "root.json.sig"
    assert signer(results, allowed) == "me@example.org"
    sign(results, key)
    assert signer(results, allowed) == "me@example.org"


def test_a_root_that_changed_after_it_was_signed_is_refused(results: Path, key: Path, allowed: Path) -> None:
    sign(results, key)
    write_json(results / "root.json", {"records": {"a": "b"}})
    with pytest.raises(FormatError, match="no signature over this root"):
        signer(results, allowed)


def test_a_strangers_signature_is_refused(results: Path, tmp_path: Path, allowed: Path) -> None:
    sign(results, make_key(tmp_path, "stranger"))
    with pytest.raises(FormatError, match="its key isn't in"):
        signer(results, allowed)


def test_a_study_without_signature_or_root_is_refused(
    results: Path, tmp_path: Path, key: Path, allowed: Path
) -> None:
    with pytest.raises(FormatError, match="isn't signed"):
        signer(results, allowed)
    with pytest.raises(FormatError, match="sealed"):
        sign(tmp_path, key)


def test_a_file_that_is_no_key_is_refused_in_ssh_keygens_words(results: Path, tmp_path: Path) -> None:
    (tmp_path / "no-key").write_text("nothing")
    with pytest.raises(ToolError):
        sign(results, tmp_path / "no-key")


def test_a_refused_key_leaves_the_signature_that_was_there(
    results: Path, tmp_path: Path, key: Path, allowed: Path
) -> None:
    sign(results, key)
    with pytest.raises(ToolError):
        sign(results, tmp_path / "no-key")
    assert signer(results, allowed) == "me@example.org"


def test_the_audit_demands_a_signature_when_it_is_asked_to(
    tmp_path: Path, key: Path, allowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    study = finish(tmp_path / "study")
    words = ["audit", str(study), "--signatures", str(allowed)]
    unsigned = CliRunner().invoke(app, words)
    assert (unsigned.exit_code, "broken chain: root.json.sig: the study isn't signed" in unsigned.stdout) == (
        4,
        True,
    )
    assert CliRunner().invoke(app, ["sign", str(key), "--results", str(study)]).exit_code == 0
    assert CliRunner().invoke(app, words).exit_code == 0
