"""A bundle: cut, carried in pieces, put together, installed without an index."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
import yaml

from reproquant.airgap import install as installing
from reproquant.airgap import pack as packing
from reproquant.airgap.parts import Carried, Manifest, cut, join
from reproquant.airgap.requirements import carried, locked
from reproquant.airgap.target import Packed, Target
from reproquant.errors import DownloadError, FormatError, StudyError, ToolError
from reproquant.files import repository
from reproquant.study import lock_path

LOCK = """\
# a comment
alpha==1.0 \\
    --hash=sha256:{a}
Beta_b==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:{a}
gamma==3.1 ; python_full_version >= '3.12' \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
delta==4 \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)


def target(**over: object) -> Target:
    data = {"name": "t", "study": "s", "python": "3.12", "glibc": "2.39", "part_mb": 1, "environments": []}
    return Target.model_validate_json(json.dumps({**data, **over}))


def test_the_h200_target_carries_every_locked_package_that_it_neither_has_nor_leaves_out() -> None:
    wanted = Target.load(repository() / "workflow/targets/h200.yaml")
    for packed in wanted.environments:
        if packed.lock:
            text = lock_path(packed.lock).read_text()
            names = {one.name for one in carried(text, packed, wanted)}
            everything = {one.name for one in locked(text, wanted.markers)}
            there = set(wanted.has) if packed.over_target else set()
            assert names == everything - there - set(packed.leave_out)
            assert "win32-setctime" not in everything and all(packed.leave_out.values())
    known = {name: version for name, version in wanted.has.items() if version}
    pins = {one.name: one.pin for one in locked(lock_path("vllm-h200").read_text(), wanted.markers)}
    for name, version in known.items():
        assert name == "numpy" or pins[name] == f"{name}=={version}", name


def test_markers_are_judged_for_the_target_and_not_for_this_python() -> None:
    assert [one.pin for one in locked(LOCK, target().markers)] == ["alpha==1.0", "gamma==3.1", "delta==4"]
    older = target(python="3.11").markers
    assert [one.pin for one in locked(LOCK, older)] == ["alpha==1.0", "delta==4"]
    gamma = locked(LOCK, target().markers)[1]
    assert gamma.line == f"gamma==3.1 --hash=sha256:{'a' * 64} --hash=sha256:{'b' * 64}"


def test_what_the_target_has_stays_its_own_only_where_the_environment_sees_it() -> None:
    there = target(has={"Alpha": "1.0"})
    over = Packed(folder="x", lock="workflow", over_target=True, leave_out={"delta": "why not"})
    plain = Packed(folder="x", lock="workflow")
    assert [one.name for one in carried(LOCK, over, there)] == ["gamma"]
    assert [one.name for one in carried(LOCK, plain, there)] == ["alpha", "gamma", "delta"]


def test_an_omission_that_the_lock_does_not_have_is_refused() -> None:
    with pytest.raises(StudyError, match="omega"):
        carried(LOCK, Packed(folder="x", lock="workflow", leave_out={"omega": "gone"}), target())


def test_a_wrong_key_of_a_target_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({**target().model_dump(mode="json"), "pyhton": "3.12"}))
    with pytest.raises(StudyError, match="pyhton"):
        Target.load(tmp_path / "t.yaml")


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A folder of parts of 1000 bytes, and the files that were cut into them."""
    contents = {f"f/{size}": bytes(index % 251 for index in range(size)) for size in (10, 999, 2500, 1)}
    files = []
    for name, content in contents.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files.append(Carried(name, hashlib.sha256(content).hexdigest(), len(content)))
    cut(tmp_path / "files", files, 1000, tmp_path / "parts", {})
    return tmp_path / "parts", contents


def test_parts_are_as_large_as_allowed_and_equal_when_cut_again(
    packed: tuple[Path, dict[str, bytes]],
) -> None:
    manifest = Manifest.load(packed[0])
    assert [part.bytes for part in manifest.parts] == [1000, 1000, 1000, 510]
    before = {path.name: path.read_bytes() for path in packed[0].iterdir()}
    cut(packed[0].parent / "files", manifest.files, 1000, packed[0], {})
    assert {path.name: path.read_bytes() for path in packed[0].iterdir()} == before


def test_files_are_whole_as_soon_as_their_parts_have_come_in_any_order(
    packed: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    parts, contents = packed
    manifest = Manifest.load(parts)
    here = tmp_path / "here"
    here.mkdir()
    come = {}
    for part in (manifest.parts[3], manifest.parts[0], manifest.parts[2], manifest.parts[1]):
        (parts / part.name).rename(here / part.name)
        come[part.name] = {file.path for file in join(manifest, here, tmp_path / "joined")}
        (here / part.name).unlink()
    assert come == {
        "part-004": {"f/1"},
        "part-001": {"f/1", "f/10"},
        "part-003": {"f/1", "f/10"},
        "part-002": set(contents),
    }
    for name, content in contents.items():
        assert (tmp_path / "joined" / name).read_bytes() == content


def test_a_damaged_part_is_named_and_nothing_of_it_used(
    packed: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    parts, _ = packed
    content = (parts / "part-002").read_bytes()
    (parts / "part-002").write_bytes(content[:-1] + b"!")
    with pytest.raises(FormatError, match="part-002"):
        join(Manifest.load(parts), parts, tmp_path / "joined")
    (parts / "part-002").write_bytes(content)
    assert len(join(Manifest.load(parts), parts, tmp_path / "joined")) == 4


def test_a_file_of_a_later_bundle_takes_the_place_of_its_namesake(
    packed: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    parts, contents = packed
    join(Manifest.load(parts), parts, tmp_path / "joined")
    name, later = "f/999", b"another build of the same release"
    (parts.parent / "files" / name).write_bytes(later)
    file = Carried(name, hashlib.sha256(later).hexdigest(), len(later))
    cut(parts.parent / "files", [file], 1000, tmp_path / "later", {})
    assert join(Manifest.load(tmp_path / "later"), tmp_path / "later", tmp_path / "joined") == [file]
    assert (tmp_path / "joined" / name).read_bytes() == later
    assert (tmp_path / "joined/f/10").read_bytes() == contents["f/10"]


def test_a_package_of_which_pip_left_no_wheel_is_named_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packer = packing._Packer(target(), tmp_path, tmp_path / "log")
    monkeypatch.setattr(packing._Packer, "_download", lambda self, wanted: None)
    with pytest.raises(DownloadError, match=r"alpha==1\.0"):
        packer.wheels(locked(LOCK, target().markers))


def wheel(folder: Path, name: str, version: str, code: str) -> Path:
    """A pure wheel of one module."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", code)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of one wheel and one download for this Python, with an environment over what it has."""
    files = tmp_path / "files"
    own = wheel(files / "wheels", "reproquant_unheard_of", "1.5", "import numpy\nSAID = numpy.__version__\n")
    (files / "downloads").mkdir()
    (files / "downloads/source.tar.gz").write_bytes(b"source")
    listed = [own, files / "downloads/source.tar.gz"]
    described = [
        Carried(
            path.relative_to(files).as_posix(),
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_size,
        )
        for path in listed
    ]
    environment = {
        "folder": "environment",
        "wheels": [described[0].path],
        "build_tools": [],
        "over_target": True,
        "project": False,
        "left_out": {},
    }
    contents = {
        "target": "t",
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "has": {"numpy": "0.0.1", "reproquant-not-here": None},
        "environments": [environment],
        "store": {described[1].path: "downloads/abc/source.tar.gz"},
    }
    cut(files, described, 300, tmp_path / "bundle/parts", contents)
    return tmp_path / "bundle"


def test_an_environment_is_installed_without_an_index_over_what_the_machine_has(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    last = sorted((bundle / "parts").glob("part-*"))[-1]
    first = sorted((bundle / "parts").glob("part-*"))[0]
    first.rename(tmp_path / "held back")
    said = list(installing.install(bundle / "parts", bundle, tmp_path))
    assert "environment waits for 1 wheels" in said and last.exists()
    assert [line for line in said if line.startswith("warning")] == [
        f"warning: numpy is {numpy.__version__} here; the bundle was packed beside 0.0.1",
        "warning: reproquant-not-here isn't here; the bundle was packed for a machine that has it",
    ]
    assert (tmp_path / "store/downloads/abc/source.tar.gz").read_bytes() == b"source"
    (tmp_path / "held back").rename(first)
    assert "environment: 1 wheels installed" in list(installing.install(bundle / "parts", bundle, tmp_path))
    python = tmp_path / "environment/bin/python"
    ask = "import reproquant_unheard_of as own; print(own.SAID)"
    done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == numpy.__version__
    assert "environment is installed" in list(installing.install(bundle / "parts", bundle, tmp_path))
    own = wheel(tmp_path / "files/wheels", "reproquant_unheard_of", "1.5", "SAID = 'built anew'\n")
    manifest = Manifest.load(bundle / "parts")
    anew = Carried(manifest.files[0].path, hashlib.sha256(own.read_bytes()).hexdigest(), own.stat().st_size)
    cut(tmp_path / "files", [anew, manifest.files[1]], 300, bundle / "parts", manifest.contents)
    assert "environment: 1 wheels installed" in list(installing.install(bundle / "parts", bundle, tmp_path))
    done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "built anew"


def test_a_bundle_for_another_python_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = bundle / "parts/manifest.json"
    path.write_text(path.read_text().replace(f'"python": "3.{sys.version_info.minor}"', '"python": "3.8"'))
    with pytest.raises(ToolError, match=r"wheels for 3\.8"):
        list(installing.install(bundle / "parts", bundle, tmp_path))


def test_what_runs_on_the_bare_machine_needs_the_standard_library_alone() -> None:
    ask = "import sys; import unbundle; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    scripts = repository() / "scripts"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(scripts)!r}); {ask}"],
        capture_output=True,
        text=True,
        check=True,
    )
    others = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"reproquant", "unbundle", "__main__"}
    assert others == set()
