"""Pythons of the user's own: real virtual environments with made-up packages in them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import finished_study
import report_fixture
from reproquant import external, freeze
from reproquant.doctor.engines import pythons
from reproquant.doctor.reading import locks
from reproquant.errors import StudyError
from reproquant.files import repository
from reproquant.provenance.audit import audit
from reproquant.provenance.digests import Digests
from reproquant.recipe import recipe_digest
from reproquant.study import External, Study
from reproquant.toolchain import environments

VLLM = {"vllm": "0.32.0", "torch": "2.13.0"}


@pytest.fixture(autouse=True)
def _asked_anew() -> None:
    external.frozen.cache_clear()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment with the packages that a vLLM subject needs, by name only."""
    return make_venv(tmp_path / "own", VLLM)


def make_venv(folder: Path, packages: dict[str, str], *options: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, folder], check=True)
    for name, version in packages.items():
        install(folder, name, version)
    return folder / "bin/python"


def install(venv: Path, name: str, version: str, content: str = "AAAA") -> None:
    """Metadata of a package that has one file, and a command whose bytes depend on the folder."""
    (site,) = venv.glob("lib/python3*/site-packages")
    for old in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(old)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: no\n")
    lines = (
        f"{name}.py,sha256={content},1",
        f"../../../bin/{name},sha256={venv.name},9",
        f"{info.name}/RECORD,,",
    )
    (info / "RECORD").write_text("\n".join(lines) + "\n")


def study(python: object, **over: Any) -> Study:
    """The report fixture's study with ``python`` for its vLLM subjects."""
    data = {**report_fixture.study("made-up"), **over}
    return Study.resolve({**data, "environments": {**data["environments"], "vllm": {"python": str(python)}}})


def refusal(of: Study) -> str:
    with pytest.raises(StudyError) as caught:
        external.check(of)
    return str(caught.value)


def test_everything_that_is_installed_is_frozen(venv: Path) -> None:
    found = environments.provide(study(venv), "vllm", Path("log")).describe()
    assert found["packages"] == VLLM
    assert set(found["records"]) == set(VLLM)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["name"] == "external-vllm"


def test_a_package_that_an_import_would_not_find_is_hidden_by_the_one_that_it_finds(
    tmp_path: Path, venv: Path
) -> None:
    install(venv.parents[1], "requests", "1.0")
    (below,) = venv.parents[1].glob("lib/python3*/site-packages")
    above = make_venv(tmp_path / "above", {"requests": "2.0"})
    (own,) = above.parents[1].glob("lib/python3*/site-packages")
    (own / "below.pth").write_text(f"{below}\n")
    found = external.frozen("vllm", External(python=str(above)))
    assert found["packages"] == {**VLLM, "requests": "2.0"}


def test_a_venv_over_another_python_shows_that_ones_packages_too(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "above", VLLM, "--system-site-packages")
    base = Path(sys.executable).resolve()
    below = external.frozen("vllm", External(python=str(base)))["packages"]
    assert below and external.frozen("vllm", External(python=str(python)))["packages"] == {**below, **VLLM}


def test_the_same_packages_in_another_folder_have_the_same_digest(tmp_path: Path, venv: Path) -> None:
    other = make_venv(tmp_path / "elsewhere", VLLM)
    assert len({external.digest("vllm", External(python=str(python))) for python in (venv, other)}) == 1


def test_what_conda_installed_is_frozen_whether_python_or_not(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/libcublas-12.4.5.8-0.json").touch()
    (tmp_path / "conda-meta/history").touch()
    assert freeze.frozen([str(tmp_path)], str(tmp_path))["conda"] == ["libcublas-12.4.5.8-0"]


CHANGES = {
    "another version": ("torch", "2.13.1", "AAAA"),
    "other files": ("torch", "2.13.0", "BBBB"),
    "a new package": ("xformers", "1.0", "AAAA"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_package_changes_the_recipes_of_what_it_makes_and_of_nothing_else(
    change: str, venv: Path
) -> None:
    chosen = study(venv)
    stages = (
        ("build_environment", {"environment": "external-vllm"}), ("benchmark", {"subject": "vllm-bf16"}),
        ("build_environment", {"environment": "converter"}), ("benchmark", {"subject": "llama-f16"}),
        ("convert_gguf", {}), ("quantize_fp8", {}),
    )  # fmt: skip
    before = [recipe_digest(stage, chosen, **wildcards) for stage, wildcards in stages]
    install(venv.parents[1], *CHANGES[change])
    external.frozen.cache_clear()
    after = [recipe_digest(stage, chosen, **wildcards) for stage, wildcards in stages]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False] * 2 + [True] * 4


def test_a_python_that_is_not_there_is_refused_with_its_key(tmp_path: Path) -> None:
    said = refusal(study(tmp_path / "gone"))
    assert "environments.vllm.python" in said and f"there is no file {tmp_path / 'gone'}" in said


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("text")
    assert "can't be run: Permission denied" in refusal(study(tmp_path / "python"))


def test_a_program_that_is_no_python_is_refused() -> None:
    assert "printed no list of packages" in refusal(study("/bin/true"))
    assert "can't list its packages: it ended with code 1" in refusal(study("/bin/false"))


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/sh\necho \'{"python": "3.8.1", "packages": {}, "records": {}, "conda": []}\'\n')
    old.chmod(0o755)
    assert "it is Python 3.8.1\n  do:  name a Python 3.9 or newer" in refusal(study(old))


def test_a_python_without_vllm_is_refused(tmp_path: Path) -> None:
    assert "it has no vllm" in refusal(study(make_venv(tmp_path / "bare", {"numpy": "2.2.6"})))


def test_another_vllm_than_the_studys_is_refused(venv: Path) -> None:
    install(venv.parents[1], "vllm", "0.31.0+cu126")
    assert "vllm.version" in (said := refusal(study(venv))) and "holds vLLM 0.31.0+cu126" in said
    vllm = {"version": "0.31.0", "dtype": "bfloat16", "max_model_len": 1024}
    external.frozen.cache_clear()
    external.check(study(venv, vllm=vllm))


def test_a_python_is_named_by_an_absolute_path() -> None:
    with pytest.raises(StudyError, match=r"environments\.vllm\.python.*path"):
        study("python3")


def test_a_lock_may_not_be_called_as_an_external_python_is() -> None:
    data = report_fixture.study("made-up")
    data["environments"]["fp8"] = "external-vllm"
    lock = repository() / "envs/external-vllm.lock"
    with pytest.raises(StudyError, match=r"environments\.fp8"):
        Study.resolve(data)
    assert not lock.exists()


def test_a_python_that_no_subject_uses_is_not_asked(tmp_path: Path) -> None:
    subjects = [{"name": "llama-f16", "engine": "llama_cpp", "artifact": "f16"}]
    external.check(study(tmp_path / "gone", subjects=subjects))


def test_the_doctor_tells_of_an_external_python_and_needs_no_room_for_it(venv: Path, tmp_path: Path) -> None:
    (row,) = pythons(study(venv), None)  # type: ignore[arg-type]
    assert row.verdict == "ok" and f"{len(VLLM)} packages" in row.found
    (row,) = pythons(study(tmp_path / "gone"), None)  # type: ignore[arg-type]
    assert row.verdict == "impossible" and "path" in row.remedy
    assert locks(study(venv)) == {"converter", "fp8"}


@pytest.fixture
def finished(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up finished study whose vLLM is the Python ``venv``."""
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    of_locks = report_fixture.study("made-up")
    of_locks["environments"]["vllm"] = {"python": str(venv)}
    monkeypatch.setattr(report_fixture, "study", lambda name: of_locks)
    return finished_study.finish(tmp_path)


def test_the_audit_compares_an_external_python_with_what_was_frozen(finished: Path, venv: Path) -> None:
    assert audit(finished, Digests()) == []
    install(venv.parents[1], "torch", "2.13.1")
    external.frozen.cache_clear()
    (finding,) = audit(finished, Digests())
    assert (finding.kind, finding.file) == ("stale", "environments/external-vllm.json")
    assert finding.what.endswith("has changed since: torch")
    assert audit(finished, Digests(), environments=False) == []


def test_the_audit_says_that_an_external_python_is_not_here_and_believes_the_rest(
    finished: Path, venv: Path
) -> None:
    shutil.rmtree(venv.parents[1])
    external.frozen.cache_clear()
    (finding,) = audit(finished, Digests())
    assert (finding.kind, finding.file) == ("missing", str(venv))
    assert audit(finished, Digests(), environments=False) == []
