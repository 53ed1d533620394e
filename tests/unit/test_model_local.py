from __future__ import annotations

from pathlib import Path

import pytest

from reproquant.errors import FormatError
from reproquant.files import write_json
from reproquant.model import local
from reproquant.study import LocalModel


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "mine"
    directory.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", ".hidden"):
        (directory / name).write_text(name)
    (directory / "folder").mkdir()
    return directory


def link(checkpoint: Path, target: Path) -> dict[str, str]:
    return local.link(LocalModel(path=str(checkpoint), licence="MIT"), target)


def test_files_are_linked_and_the_source_tells_no_path(checkpoint: Path, tmp_path: Path) -> None:
    source = link(checkpoint, tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        *("config.json", "tokenizer.json", "model.safetensors")
    }
    assert (tmp_path / "model" / "config.json").read_text() == "config.json"
    assert str(tmp_path) not in str(source)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_directory_that_lacks_a_part_is_refused_with_its_name(
    checkpoint: Path, tmp_path: Path, name: str
) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(FormatError, match=name.replace("model.", r"\*\.")):
        link(checkpoint, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_shard_that_the_index_lists_must_be_there(checkpoint: Path, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    write_json(checkpoint / "model.safetensors.index.json", index)
    with pytest.raises(FormatError, match=r"it lacks model-00002-of-00002\.safetensors"):
        link(checkpoint, tmp_path / "model")


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": []}}'])
def test_an_index_that_is_none_is_named(index: str, checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(index)
    with pytest.raises(FormatError, match=r"a whole model\.safetensors\.index\.json"):
        link(checkpoint, tmp_path / "model")


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such directory"):
        link(tmp_path / "nowhere", tmp_path / "model")
