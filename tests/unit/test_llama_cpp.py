"""llama.cpp's source and build: what is refused, what is checked, what is recorded. Nothing is compiled."""

from __future__ import annotations

import io
import json
import shutil
import stat
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reproquant.errors import DownloadError, FormatError, StudyError, ToolError
from reproquant.files import sha256_file, write_json
from reproquant.study import GitSource, LlamaCpp, SdistSource
from reproquant.toolchain import cmake, llama_cpp
from reproquant.toolchain.cmake import find_cuda, find_tools
from reproquant.toolchain.llama_cpp import Build, SourceTree, fetch_source, tree_sha256

COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
SOURCE = SourceTree(
    Path("/somewhere"), {"commit": COMMIT, "build_number": 11434, "tree_sha256": "0" * 64, "kind": "sdist"}
)


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def settings(**changes: Any) -> LlamaCpp:
    data = {"source": "sdist", "backend": "cpu", "cpu_instructions": ["AVX", "AVX2", "FMA"], **changes}
    return LlamaCpp.model_validate_json(json.dumps(data))


def put_sdist(store: Path, members: dict[str, bytes | tarfile.TarInfo], commit: str = COMMIT) -> SdistSource:
    """An sdist that counts as downloaded already, and the study's pin of it."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, member in members.items():
            if isinstance(member, bytes):
                entry = tarfile.TarInfo(name)
                entry.size = len(member)
                archive.addfile(entry, io.BytesIO(member))
            else:
                archive.addfile(member)
    sdist = store / "sdist.tar.gz"
    store.mkdir(exist_ok=True)
    sdist.write_bytes(content.getvalue())
    digest = sha256_file(sdist)
    folder = store / "downloads" / digest
    folder.mkdir(parents=True)
    sdist.rename(folder / "p-1.0.tar.gz")
    return SdistSource(package="p", version="1.0", sha256=digest, commit=commit, build_number=1)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake_toolkit(root: Path, release: str, *codes: str) -> Path:
    """A folder laid out as a CUDA toolkit whose nvcc only answers questions."""
    answers = (
        f'case "$1" in --list-gpu-code) printf "%s\\n" {" ".join(codes)};; *) echo "x, V{release}";; esac'
    )
    program(root / "bin" / "nvcc", answers)
    (root / "include").mkdir()
    (root / "include" / "cuda_runtime.h").touch()
    return root


def test_only_the_vendored_tree_of_an_sdist_is_unpacked(own_store: Path, tmp_path: Path) -> None:
    spec = put_sdist(
        own_store,
        {
            "p-1.0/setup.py": b"no part of llama.cpp",
            "p-1.0/.git/modules/vendor/llama.cpp/HEAD": COMMIT.encode() + b"\n",
            "p-1.0/vendor/llama.cpp/.git": b"gitdir: elsewhere",
            "p-1.0/vendor/llama.cpp/src/llama.cpp": b"code",
        },
    )
    source = fetch_source(spec, tmp_path / "log")
    files = [path.relative_to(source.root).as_posix() for path in source.root.rglob("*") if path.is_file()]
    assert files == ["src/llama.cpp"]
    assert source.facts["commit_recorded"] is True
    assert source.facts["tree_sha256"] == tree_sha256(source.root)


def test_an_sdist_that_vendors_another_commit_is_refused(own_store: Path, tmp_path: Path) -> None:
    spec = put_sdist(
        own_store,
        {"p-1.0/.git/modules/vendor/llama.cpp/HEAD": b"f" * 40, "p-1.0/vendor/llama.cpp/a": b"code"},
    )
    with pytest.raises(DownloadError, match=f"{'f' * 40}, the study says {COMMIT}"):
        fetch_source(spec, tmp_path / "log")
    assert not [path for path in (own_store / "sources").iterdir() if path.is_dir()]


def test_an_sdist_without_git_data_is_taken_and_the_facts_say_that_its_commit_is_only_claimed(
    own_store: Path, tmp_path: Path
) -> None:
    spec = put_sdist(own_store, {"p-1.0/vendor/llama.cpp/a": b"code"})
    assert fetch_source(spec, tmp_path / "log").facts["commit_recorded"] is False


@pytest.mark.parametrize("name", ["p-1.0/vendor/llama.cpp/../../../../evil", "/vendor/llama.cpp/evil"])
def test_an_sdist_that_would_write_outside_is_refused(own_store: Path, tmp_path: Path, name: str) -> None:
    spec = put_sdist(own_store, {name: b"evil"})
    with pytest.raises(FormatError, match="outside"):
        fetch_source(spec, tmp_path / "log")


def test_a_link_in_the_vendored_tree_is_refused(own_store: Path, tmp_path: Path) -> None:
    link = tarfile.TarInfo("p-1.0/vendor/llama.cpp/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    spec = put_sdist(own_store, {"link": link})
    with pytest.raises(FormatError, match="no plain file"):
        fetch_source(spec, tmp_path / "log")


def test_a_download_with_other_bytes_is_refused(own_store: Path, tmp_path: Path) -> None:
    spec = put_sdist(own_store, {"p-1.0/vendor/llama.cpp/a": b"code"})
    (sdist,) = (own_store / "downloads" / spec.sha256).iterdir()
    sdist.write_bytes(b"changed")
    with pytest.raises(DownloadError, match="not the pinned ones"):
        fetch_source(spec, tmp_path / "log")


def test_an_index_that_offers_other_bytes_is_refused(
    own_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = tmp_path / "offered"
    offered.mkdir()
    (offered / "p-1.0.tar.gz").write_bytes(b"other bytes")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(offered))
    spec = SdistSource(package="p", version="1.0", sha256="0" * 64, commit=COMMIT, build_number=1)
    with pytest.raises(DownloadError, match="sha256"):
        fetch_source(spec, tmp_path / "log")
    assert [path.suffix for path in (own_store / "downloads").iterdir()] == [".lock"]


def test_a_source_tree_that_was_changed_in_the_store_is_refused(own_store: Path, tmp_path: Path) -> None:
    spec = put_sdist(own_store, {"p-1.0/vendor/llama.cpp/a": b"code"})
    root = fetch_source(spec, tmp_path / "log").root
    (root / "a").write_bytes(b"patched")
    with pytest.raises(FormatError, match="changed after it was unpacked"):
        fetch_source(spec, tmp_path / "log")


def test_bytecode_that_python_leaves_is_no_change_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.py").write_text("")
    before = tree_sha256(tmp_path / "t")
    (tmp_path / "t" / "__pycache__").mkdir()
    (tmp_path / "t" / "__pycache__" / "a.pyc").touch()
    assert tree_sha256(tmp_path / "t") == before


def test_a_commit_comes_from_git_alone_and_its_tree_equals_the_sdists(
    own_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q")
    (work / "a").write_bytes(b"code")
    git(work, "add", "a")
    git(work, "commit", "-qm", "one")
    commit = git(work, "rev-parse", "HEAD")
    (work / "a").write_bytes(b"newer")
    git(work, "commit", "-qam", "two")
    subprocess.run(["git", "clone", "-q", "--bare", work, tmp_path / "bare.git"], check=True)
    monkeypatch.setenv("GIT_DIR", "/a/hook/set/this")
    address = (tmp_path / "bare.git").as_uri()

    source = fetch_source(GitSource(repository=address, commit=commit, build_number=7), tmp_path / "log")

    assert [path.name for path in source.root.iterdir()] == ["a"]
    assert source.facts["commit"] == commit
    vendored = put_sdist(own_store, {"p-1.0/vendor/llama.cpp/a": b"code"})
    assert source.facts["tree_sha256"] == fetch_source(vendored, tmp_path / "log").facts["tree_sha256"]


def test_a_commit_that_the_repository_lacks_is_a_download_error(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "bare.git"], check=True)
    spec = GitSource(repository=(tmp_path / "bare.git").as_uri(), commit="a" * 40, build_number=1)
    with pytest.raises(DownloadError, match="a" * 40):
        fetch_source(spec, tmp_path / "log")


def test_every_instruction_set_is_named_on_or_off() -> None:
    definitions = llama_cpp._definitions(settings(), SOURCE, llama_cpp._Places())
    assert {"GGML_NATIVE=OFF", "GGML_AVX2=ON", "GGML_FMA=ON", "GGML_F16C=OFF", "GGML_AVX512=OFF"} <= set(
        definitions
    )


def test_no_path_of_this_machine_is_in_the_recorded_definitions() -> None:
    cuda = settings(backend="cuda", cuda_architectures=[70], cuda_toolkit="/opt/cuda-12.9")
    text = "\n".join(llama_cpp._definitions(cuda, SOURCE, llama_cpp._Places()))
    assert "/opt" not in text and "/somewhere" not in text
    assert "CUDAToolkit_ROOT=CUDA\n" in text and "CMAKE_CUDA_COMPILER=CUDA/bin/nvcc\n" in text
    assert "CMAKE_CUDA_ARCHITECTURES=70\n" in text


def test_a_variable_that_turns_simd_off_does_not_reach_cmake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.setenv("CFLAGS", "-march=native")
    monkeypatch.setenv("GIT_DIR", "/some/repository")
    asked = "project(t NONE)\nmessage(STATUS [$ENV{SOURCE_DATE_EPOCH}][$ENV{CFLAGS}][$ENV{GIT_DIR}])\n"
    (tmp_path / "CMakeLists.txt").write_text(asked)
    real = Path(shutil.which("cmake", path=cmake._path()["PATH"]) or "cmake")
    tools = cmake.Tools(cmake=real, ninja=real, c=real, cxx=real)
    tools.configure(tmp_path, tmp_path / "build", ["UNUSED=1"], tmp_path / "log")
    assert "-- [][][/nonexistent]" in (tmp_path / "log").read_text()


CACHE = """\
if [ "$1" = --version ]; then echo "ccache version 0"; exit; fi
env | grep ^CCACHE_ | sort > "$PWD/settings"
echo "$1" >> "$PWD/launched"
exec "$@"
"""


def test_ccache_is_put_before_the_compilers_with_settings_that_keep_the_bytes(
    tmp_path: Path, own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for ccache notes how it was called, and calls the real compiler."""
    monkeypatch.setenv("CCACHE_SLOPPINESS", "time_macros")
    monkeypatch.setenv("CCACHE_PREFIX", "distcc")
    text = "cmake_minimum_required(VERSION 3.14)\nproject(t C)\nadd_library(t STATIC t.c)\n"
    (tmp_path / "CMakeLists.txt").write_text(text)
    (tmp_path / "t.c").write_text("const char *file(void) { return __FILE__; }\n")
    plain = replace(find_tools(), ccache=None)
    objects = {}
    for name, ccache in (("without", None), ("with", program(tmp_path / "bin/ccache", CACHE))):
        tools = replace(plain, ccache=ccache)
        tools.configure(tmp_path, tmp_path / name, [f"CMAKE_C_COMPILER={plain.c}"], tmp_path / "log")
        tools.compile(tmp_path / name, ["t"], 1, tmp_path / "log")
        objects[name] = next((tmp_path / name).rglob("t.c.o")).read_bytes()
    assert objects["with"] == objects["without"]
    assert str(plain.c) in (tmp_path / "with/launched").read_text()
    assert (tmp_path / "with/settings").read_text().splitlines() == [
        "CCACHE_BASEDIR=",
        "CCACHE_COMPILERCHECK=content",
        f"CCACHE_DIR={own_store / 'ccache'}",
        "CCACHE_HASHDIR=true",
        "CCACHE_SLOPPINESS=",
    ]
    assert tools.builders()["ccache"] == "ccache version 0"


def test_a_missing_cpp_compiler_is_one_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cmake", "ninja", "gcc"):
        program(tmp_path / name, "true")
    monkeypatch.setattr(cmake, "_path", lambda: {"PATH": str(tmp_path)})
    with pytest.raises(ToolError, match=r"g\+\+") as caught:
        find_tools()
    assert caught.value.remedy == "apt-get install g++"


def test_an_nvcc_that_lists_sm_70_is_taken_with_its_root_and_release(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda", "12.4.131", "sm_52", "sm_70")
    cuda = find_cuda(str(root), (70,))
    assert (cuda.root, cuda.version) == (root, "12.4.131")


def test_an_nvcc_that_does_not_list_sm_70_is_refused_before_configuring(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda", "13.0.88", "sm_75", "sm_90")
    with pytest.raises(ToolError, match=r"nvcc 13\.0\.88 can't make machine code for sm_70") as caught:
        llama_cpp.build(
            settings(backend="cuda", cuda_architectures=[70], cuda_toolkit=str(root)),
            SOURCE,
            tmp_path / "bin",
            1,
            tmp_path / "log",
        )
    assert "CUDA >= 12.0 and < 13" in caught.value.remedy
    assert not (tmp_path / "log").exists()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler on this machine")
def test_the_nvcc_of_this_machine_is_refused_exactly_for_what_it_does_not_list() -> None:
    nvcc = shutil.which("nvcc")
    listed = subprocess.run([str(nvcc), "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    if "sm_70" in listed.split():
        pytest.skip("it can make code for sm_70")
    with pytest.raises(ToolError, match="can't make machine code for sm_70"):
        find_cuda(None, (70,))


def test_an_nvcc_outside_a_toolkit_is_refused(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda", "12.4.131", "sm_70")
    (root / "include" / "cuda_runtime.h").unlink()
    with pytest.raises(ToolError, match="stands alone"):
        find_cuda(str(root), (70,))


def test_a_cuda_build_for_no_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="cuda_architectures"):
        llama_cpp.build(settings(backend="cuda"), SOURCE, tmp_path, 1, tmp_path / "log")


def test_only_a_work_folder_of_this_source_and_place_is_built_on(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    assert not llama_cpp._resumable(work, SOURCE)
    cache = f"CMAKE_CACHEFILE_DIR:INTERNAL={work}\nCMAKE_HOME_DIRECTORY:INTERNAL={SOURCE.root}\n"
    (work / "CMakeCache.txt").write_text(cache)
    assert llama_cpp._resumable(work, SOURCE)
    assert not llama_cpp._resumable(work, SourceTree(tmp_path, {}))


def test_a_server_that_reports_another_commit_is_refused(tmp_path: Path) -> None:
    server = program(tmp_path / "llama-server", "echo 'version: 0.5.0 (build 11434, commit deadbeef)' >&2")
    with pytest.raises(ToolError, match=f"deadbeef.*not {COMMIT}"):
        llama_cpp._reported_version(server, SOURCE, None)


def test_a_binary_that_was_changed_after_the_build_is_refused(tmp_path: Path) -> None:
    binary = program(tmp_path / "bin" / "llama-server", "true")
    write_json(tmp_path / "build.json", {"binaries": {"llama-server": {"sha256": sha256_file(binary)}}})
    tools = Build.load(tmp_path / "build.json")
    assert tools.binary("llama-server") == binary
    binary.write_text("something else")
    with pytest.raises(FormatError, match="is not the llama-server"):
        tools.binary("llama-server")


def test_a_build_that_is_in_the_store_is_copied_and_not_repeated(own_store: Path, tmp_path: Path) -> None:
    """The store is filled by a stand-in for the compile step, which must run once."""
    runs = []

    def stand_in(*given: Any) -> None:
        place: Path = given[4]
        runs.append(place)
        binaries = {}
        for name in llama_cpp.BINARIES:
            binaries[name] = {"sha256": sha256_file(program(place / "bin" / name, name))}
        write_json(place / "build.json", {"binaries": binaries})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_cpp, "_build", stand_in)
        first = llama_cpp.build(settings(), SOURCE, tmp_path / "one", 1, tmp_path / "log")
        second = llama_cpp.build(settings(), SOURCE, tmp_path / "two", 1, tmp_path / "log")
        llama_cpp.build(settings(cpu_instructions=["AVX"]), SOURCE, tmp_path / "three", 1, tmp_path / "log")
    assert (first["from_store"], second["from_store"]) == (False, True)
    assert len(runs) == 2 and runs[0] != runs[1]
    assert (tmp_path / "two" / "llama-server").read_bytes() == (
        tmp_path / "one" / "llama-server"
    ).read_bytes()
