from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reproquant.errors import FormatError
from reproquant.files import sha256_file
from reproquant.fp8 import shards
from reproquant.fp8.source import headers


def made() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    matrix = torch.randn(6, 4, generator=random)
    return {
        "codes": matrix.to(torch.float8_e4m3fn),
        "turned": matrix.T.to(torch.bfloat16),
        "half": matrix.half(),
        "scale": torch.tensor(0.5),
    }


def test_a_file_is_what_safetensors_itself_writes(tmp_path: Path) -> None:
    plain = {name: tensor.contiguous() for name, tensor in made().items()}
    save_file(plain, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    digest = shards.write(tmp_path / "ours.safetensors", made())
    assert digest == sha256_file(tmp_path / "ours.safetensors")
    theirs, ours = (load_file(tmp_path / f"{name}.safetensors") for name in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    assert all(shards.bytes_of(theirs[name]) == shards.bytes_of(ours[name]) for name in plain)


def test_a_stored_tensor_is_copied_through_and_read_back(tmp_path: Path) -> None:
    shards.write(tmp_path / "a.safetensors", made())
    stored = headers(tmp_path)
    (tmp_path / "copy").mkdir()
    shards.write(tmp_path / "copy/b.safetensors", stored)
    assert sha256_file(tmp_path / "copy/b.safetensors") == sha256_file(tmp_path / "a.safetensors")
    assert torch.equal(shards.read(stored["half"]), made()["half"])
    wanted = torch.tensor([5, 0, 5])
    assert torch.equal(shards.read_rows(stored["half"], wanted), made()["half"][wanted])


def test_a_file_that_ends_within_a_tensor_is_an_error_and_no_tensor(tmp_path: Path) -> None:
    shards.write(tmp_path / "a.safetensors", made())
    stored = headers(tmp_path)
    content = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(content[:-4])
    with pytest.raises(FormatError, match="ends in the middle"):
        shards.read(stored["codes"])
