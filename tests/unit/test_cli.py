"""The commands on what isn't there, isn't a study, or is published: three lines, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproquant.cli import app


def refused(*words: object) -> str:
    """What a command says that ends with three lines and code 2."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, SystemExit) and done.exit_code == 2, done.exception
    assert done.stderr.startswith("error: ") and "\n  do:  " in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("times",), ("verify", "--rederive", "report"), ("publish", "new"), ("export-crate", "new"),
        ("remeasure", "llama-f16"), ("explain", "x"), ("sign", "key"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_results_directory_that_is_not_there_is_named(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "results/nothing" in refused(*words, "--results", "results/nothing")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"- a list\n", b"\xd0\x00", b"a: [unclosed"])
def test_a_study_file_that_is_none_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_bytes(content)
    assert "study.yaml" in refused("doctor", tmp_path / "study.yaml")
