"""Environments from hashed locks: real pip and tiny wheels made here; no network."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from reproquant.errors import DownloadError, ReproquantError, StudyError, ToolError
from reproquant.files import repository, sha256_file
from reproquant.toolchain import python_env

LOCKS = sorted((repository() / "envs").glob("*.lock"))


class Bench:
    """A folder with wheels that pip finds, a lock, and a store of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.lock = folder / "tiny.lock"
        self.log = folder / "log"
        self.monkeypatch = monkeypatch
        self.wheels.mkdir()
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        self.set(PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL=self.index("empty"), PIP_FIND_LINKS=self.wheels)
        self.set(REPROQUANT_STORE=folder / "store")
        monkeypatch.setattr(python_env, "lock_path", lambda name: folder / f"{name}.lock")

    def set(self, **variables: object) -> None:
        for name, value in variables.items():
            self.monkeypatch.setenv(name, str(value))

    def index(self, name: str) -> str:
        """The address of an index that has only what lies in its folder."""
        (self.folder / name).mkdir(exist_ok=True)
        return (self.folder / name).as_uri()

    def ensure(self) -> python_env.PythonEnv:
        return python_env.ensure("tiny", self.log)

    def leftovers(self) -> list[str]:
        """What lies in the store besides file locks."""
        environments = self.folder / "store" / "environments"
        return [path.name for path in environments.iterdir() if not path.name.endswith(".lock")]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path, monkeypatch)
    wheel = make_wheel(made.wheels, "parcel", "1.0")
    made.lock.write_text(f"parcel==1.0 \\\n    --hash=sha256:{sha256_file(wheel)}\n")
    return made


def make_wheel(folder: Path, name: str, version: str, metadata: str = "") -> Path:
    """A wheel with one module, which holds its version, and one command."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n\ndef main():\n    print(version)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    record = "".join(f"{path},sha256={digest64(text)},{len(text)}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
    return path


def digest64(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def test_an_environment_holds_what_its_lock_names_and_nothing_else(bench: Bench) -> None:
    facts = bench.ensure().describe()
    assert facts["packages"] == {"parcel": "1.0"}
    assert facts["lock_sha256"] == sha256_file(bench.lock)
    assert facts["python"].startswith(python_env.python_minor())


def test_an_environment_that_is_there_is_not_built_again(bench: Bench) -> None:
    first = bench.ensure()
    log = bench.log.read_bytes()
    assert bench.ensure() == first
    assert bench.log.read_bytes() == log


def test_a_half_built_environment_is_thrown_away_and_built_again(bench: Bench) -> None:
    environment = bench.ensure()
    (environment.root / python_env.COMPLETE).unlink()
    (environment.site_packages / "parcel.py").write_text("half a fi")
    rubbish = environment.root / "rubbish"
    rubbish.touch()
    said = subprocess.run(
        [bench.ensure().root / "bin" / "parcel"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "1.0\n"
    assert not rubbish.exists()


def test_other_bytes_of_one_version_are_another_environment_and_the_old_one_stays(bench: Bench) -> None:
    first = bench.ensure()
    facts = first.describe()
    wheel = make_wheel(bench.wheels, "parcel", "1.0", "Summary: patched\n")
    bench.lock.write_text(f"parcel==1.0 --hash=sha256:{sha256_file(wheel)}\n")
    patched = bench.ensure().describe()
    assert patched["packages"] == facts["packages"]
    assert patched["installed_sha256"] != facts["installed_sha256"]
    assert first.describe() == facts


def test_the_digest_of_what_is_installed_does_not_depend_on_the_folder(bench: Bench) -> None:
    first = bench.ensure().describe()
    bench.set(REPROQUANT_STORE=bench.folder / "elsewhere")
    assert bench.ensure().describe() == first


def test_a_file_with_another_sha256_is_refused_and_nothing_stays(bench: Bench) -> None:
    bench.lock.write_text(f"parcel==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(DownloadError, match=r"tiny: parcel==1\.0") as caught:
        bench.ensure()
    assert "sha256" in caught.value.reason
    assert bench.leftovers() == []


def test_a_package_that_no_index_has_is_named(bench: Bench) -> None:
    bench.lock.write_text(f"absent==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(DownloadError, match=r"tiny: absent==1\.0") as caught:
        bench.ensure()
    assert "no index has a file of it" in caught.value.reason


def test_an_index_that_cannot_be_reached_is_told_from_a_missing_package(bench: Bench) -> None:
    bench.set(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES=1)
    bench.lock.write_text(f"absent==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(DownloadError, match=r"tiny: absent==1\.0") as caught:
        bench.ensure()
    assert "could not be reached" in caught.value.reason


def test_a_dependency_that_is_not_locked_is_not_installed(bench: Bench) -> None:
    wheel = make_wheel(bench.wheels, "parcel", "1.0", "Requires-Dist: absent\n")
    bench.lock.write_text(f"parcel==1.0 --hash=sha256:{sha256_file(wheel)}\n")
    assert list(bench.ensure().describe()["packages"]) == ["parcel"]


def test_a_cpu_build_comes_from_the_second_index_only_when_pip_has_none(bench: Bench) -> None:
    index = bench.folder / "index" / "parcel"
    wheel = make_wheel(index, "parcel", "1.0+cpu")
    (index / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    bench.monkeypatch.setattr(python_env, "TORCH_CPU_INDEX", index.parent.as_uri())
    bench.lock.write_text(f"parcel==1.0+cpu --hash=sha256:{sha256_file(wheel)}\n")
    assert bench.ensure().describe()["packages"] == {"parcel": "1.0+cpu"}
    assert index.parent.as_uri() in bench.log.read_text()

    wheel.rename(bench.wheels / wheel.name)
    bench.log.write_text("")
    bench.set(REPROQUANT_STORE=bench.folder / "elsewhere")
    assert bench.ensure().describe()["packages"] == {"parcel": "1.0+cpu"}
    assert index.parent.as_uri() not in bench.log.read_text()


def test_a_metadata_only_entry_gives_a_version_and_no_files(bench: Bench) -> None:
    bench.lock.write_text("# metadata only: ghost==3.1+cpu\n" + bench.lock.read_text())
    environment = bench.ensure()
    ask = "import importlib.metadata as m; print(m.version('ghost'))"
    said = subprocess.run([environment.python, "-c", ask], capture_output=True, text=True, check=True)
    assert said.stdout == "3.1+cpu\n"
    assert environment.describe()["packages"] == {"ghost": "3.1+cpu", "parcel": "1.0"}


def test_a_name_without_a_lock_is_refused(bench: Bench) -> None:
    with pytest.raises(StudyError, match="no lock for the environment 'unheard-of'"):
        python_env.ensure("unheard-of", bench.log)


def test_a_module_of_the_project_runs_with_the_environments_python(bench: Bench) -> None:
    environment = bench.ensure()
    with pytest.raises(ToolError, match="No module named"):
        environment.run_module("reproquant.no_such_module", [], bench.log)
    environment.run_module("reproquant.errors", [], bench.log)


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", ToolError, "full"),
        ("WARNING: Retrying: 'Temporary failure in name resolution'", DownloadError, "could not be reached"),
        ("urllib3.exceptions.ReadTimeoutError: Read timed out.", DownloadError, "could not be reached"),
    ],
)
def test_what_pip_says_is_told_in_words(said: str, kind: type[ReproquantError], words: str) -> None:
    error = python_env.failure(said, "environment tiny")
    assert type(error) is kind
    assert words in error.reason


def test_a_python_without_pip_is_told_how_to_get_one(bench: Bench) -> None:
    bench.monkeypatch.setattr(python_env.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match="ensurepip"):
        bench.ensure()
    assert bench.leftovers() == []


def test_words_of_pip_that_are_not_known_stay_as_they_are() -> None:
    assert python_env.failure("ERROR: something new", "environment tiny") is None


def test_a_lock_is_split_into_what_pypi_has_and_cpu_builds() -> None:
    first = "a==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:ab\n"
    torch = "torch==2.0+cpu \\\n    --hash=sha256:bb\n"
    assert python_env.requirements(f"# head\n{first}{torch}c==3\n") == (f"{first}c==3\n", torch)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_pins_exact_versions_with_a_sha256_and_names_no_place(lock: Path) -> None:
    pypi, pytorch = python_env.requirements(lock.read_text())
    entries = re.split(r"\n(?=\S)", (pypi + pytorch).strip())
    assert len(entries) > 5
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[^\s;]+ ", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry
    assert "://" not in lock.read_text()
    assert "--index-url" not in lock.read_text()


def test_every_environment_has_a_lock_that_was_made_for_it() -> None:
    names = {path.stem for path in (repository() / "envs").glob("*.in")}
    assert names == {path.stem for path in LOCKS}
