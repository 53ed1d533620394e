"""The real AutoFP8 as a backend: where its source comes from, and which settings it can do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from reproquant.errors import DownloadError, FormatError, StudyError
from reproquant.files import repository
from reproquant.study import Study, laid_over
from reproquant.toolchain import autofp8

CONFIG = yaml.safe_load((repository() / "config.yaml").read_text())
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *IDENTITY, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bare repository whose first commit stands for AutoFP8's, and a store of the test's own."""
    work = tmp_path / "work"
    (work / "auto_fp8").mkdir(parents=True)
    git(work, "init", "-q")
    for content in ("one", "two"):
        (work / "auto_fp8/__init__.py").write_text(content)
        git(work, "add", ".")
        git(work, "commit", "-qm", content)
    monkeypatch.setattr(autofp8, "COMMIT", git(work, "rev-parse", "HEAD~1"))
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    git(tmp_path, "clone", "-q", "--bare", "work", "bare.git")
    return (tmp_path / "bare.git").as_uri()


def test_the_commit_is_checked_out_once_and_not_the_newest(remote: str, tmp_path: Path) -> None:
    folder = autofp8.checkout(remote, tmp_path / "log")
    assert (folder / "auto_fp8/__init__.py").read_text() == "one"
    assert autofp8.checkout("file:///nowhere", tmp_path / "log") == folder


def test_a_checkout_that_was_changed_or_is_of_another_commit_is_refused(remote: str, tmp_path: Path) -> None:
    folder = autofp8.checkout(remote, tmp_path / "log")
    (folder / "auto_fp8/__init__.py").write_text("changed")
    with pytest.raises(FormatError, match="it was changed"):
        autofp8.checkout(remote, tmp_path / "log")
    with pytest.raises(FormatError, match="it is no checkout of AutoFP8"):
        autofp8.confirm(tmp_path / "work")


def test_where_git_reaches_nothing_its_reason_is_told_and_nothing_is_left(
    remote: str, tmp_path: Path
) -> None:
    with pytest.raises(DownloadError) as refused:
        autofp8.checkout((tmp_path / "nowhere.git").as_uri(), tmp_path / "log")
    assert "nowhere.git" in refused.value.reason
    assert "fp8.backend: native" in refused.value.remedy
    assert "fp8.autofp8_repository" in refused.value.remedy
    assert (autofp8.checkout(remote, tmp_path / "log") / "auto_fp8").is_dir()


@pytest.mark.parametrize(
    ("key", "value"), [("activation_scales", "corrected"), ("fused_scales", "shared"), ("device", "cuda")]
)
def test_what_autofp8_cannot_do_is_refused_with_the_study(key: str, value: str) -> None:
    able = {"backend": "autofp8", "activation_scales": "autofp8", "fused_scales": "separate"}
    assert Study.resolve(laid_over(CONFIG, {"fp8": able})).fp8_role == "converter"
    with pytest.raises(StudyError, match=f"AutoFP8 itself can't do '{value}'"):
        Study.resolve(laid_over(CONFIG, {"fp8": {**able, key: value}}))


def test_variants_for_the_quality_table_are_made_by_the_native_writer() -> None:
    able = {"backend": "autofp8", "activation_scales": "autofp8", "fused_scales": "separate"}
    variant = Study.resolve(laid_over(CONFIG, {"fp8": able})).fp8_variant("fp8-shared")
    assert variant is not None
    assert (variant.backend, variant.fused_scales) == ("native", "shared")
