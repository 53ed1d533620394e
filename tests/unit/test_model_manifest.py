from __future__ import annotations

from pathlib import Path

import pytest

from reproquant.errors import FormatError
from reproquant.files import read_json, sha256_text, write_json
from reproquant.model import manifest
from reproquant.model.manifest import Manifest

SOURCE = {"kind": "hub", "licence": "Apache-2.0", "note": "a test", "revision": "0" * 40}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "results" / "model" / "tiny"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_text("weights")
    return directory


def written(directory: Path) -> Path:
    path = directory.parent / "manifest.json"
    manifest.write(directory, path, "tiny", SOURCE)
    return path


def test_what_was_written_is_what_is_loaded(checkpoint: Path) -> None:
    loaded = Manifest.load(written(checkpoint))
    assert loaded.name == "tiny"
    assert loaded.source == SOURCE
    assert loaded.directory.resolve() == checkpoint.resolve()
    assert {file.path: file.sha256 for file in loaded.files} == {
        "config.json": sha256_text("{}"),
        "model.safetensors": sha256_text("weights"),
    }
    assert loaded.weight_bytes == len("weights")


def test_equal_files_in_two_places_give_the_same_manifest(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "model" / "tiny"
    other.mkdir(parents=True)
    for path in checkpoint.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert written(checkpoint).read_bytes() == written(other).read_bytes()


def test_a_linked_file_is_described_by_the_bytes_it_leads_to(checkpoint: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_text("linked weights")
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").symlink_to(blob)
    weights = Manifest.load(written(checkpoint)).files[1]
    assert (weights.bytes, weights.sha256) == (14, sha256_text("linked weights"))


def test_hidden_files_are_no_part_of_the_checkpoint(checkpoint: Path) -> None:
    (checkpoint / ".cache").mkdir()
    (checkpoint / ".cache" / "lock").touch()
    assert [file.path for file in Manifest.load(written(checkpoint)).files] == [
        "config.json",
        "model.safetensors",
    ]


def test_a_directory_without_weights_gets_no_manifest(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(FormatError, match="no checkpoint"):
        written(checkpoint)
    assert not (checkpoint.parent / "manifest.json").exists()


def test_a_manifest_of_the_wrong_shape_is_refused_with_the_key(checkpoint: Path) -> None:
    path = written(checkpoint)
    data = read_json(path)
    data["files"][0]["sha256"] = "abc"
    write_json(path, data)
    with pytest.raises(FormatError, match=r"files\.0\.sha256"):
        Manifest.load(path)


def test_text_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("{")
    with pytest.raises(FormatError, match="can't be read as a model manifest"):
        Manifest.load(path)


def test_a_checkpoint_that_lost_a_file_is_refused(checkpoint: Path) -> None:
    path = written(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(FormatError, match=r"config\.json, which does not exist"):
        Manifest.load(path)


def test_a_checkpoint_whose_file_changed_size_is_refused(checkpoint: Path) -> None:
    path = written(checkpoint)
    (checkpoint / "model.safetensors").write_text("weight")
    with pytest.raises(FormatError, match="6 bytes instead of 7"):
        Manifest.load(path)
