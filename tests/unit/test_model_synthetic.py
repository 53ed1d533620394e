from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize

from model_fixture import CONTROL, write_qwen2_vocabulary
from reproquant.errors import FormatError, StudyError
from reproquant.files import read_json, sha256_file
from reproquant.model import synthetic
from reproquant.study import Shape, SyntheticModel

SHAPE = Shape(
    num_hidden_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=80,
    tie_word_embeddings=False,
)


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "ggml-vocab-qwen2.gguf"
    write_qwen2_vocabulary(path, [*CONTROL, *(f"t{number}" for number in range(40))])
    return path


def weights(directory: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every tensor of a checkpoint as safetensors itself reads it: type, shape, bytes."""
    return {
        name: (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
        for path in directory.glob("*.safetensors")
        for name, tensor in deserialize(path.read_bytes())
    }


def floats(data: bytes) -> np.ndarray:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def test_the_same_seed_gives_the_same_files(vocabulary: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("first", "second"):
        synthetic.make(SyntheticModel(seed=3, shape=SHAPE), vocabulary, tmp_path / name)
        digests.append({path.name: sha256_file(path) for path in (tmp_path / name).iterdir()})
    assert digests[0] == digests[1]


def test_sharding_changes_no_tensor(tmp_path: Path) -> None:
    for name, shard_bytes in {"one": 1_000_000, "many": 20_000}.items():
        (tmp_path / name).mkdir()
        synthetic.write_weights(SHAPE, 3, tmp_path / name, shard_bytes)
    assert len(list((tmp_path / "one").glob("*.safetensors"))) == 1
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    assert weights(tmp_path / "one") == weights(tmp_path / "many")


def test_the_index_names_the_shard_that_holds_each_tensor(tmp_path: Path) -> None:
    synthetic.write_weights(SHAPE, 3, tmp_path, shard_bytes=20_000)
    index = read_json(tmp_path / "model.safetensors.index.json")
    for name, shard in index["weight_map"].items():
        assert name in dict(deserialize((tmp_path / shard).read_bytes()))
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in weights(tmp_path).values())


def test_tensors_are_bfloat16_of_the_shape_and_the_promised_spread(tmp_path: Path) -> None:
    synthetic.write_weights(SHAPE, 3, tmp_path)
    found = weights(tmp_path)
    assert {name: shape for name, (_, shape, _) in found.items()} == dict(synthetic.tensors(SHAPE))
    assert {dtype for dtype, _, _ in found.values()} == {"BF16"}
    values = np.concatenate([floats(found[name][2]) for name in found if name.endswith("proj.weight")])
    assert values.std() == pytest.approx(0.02, rel=0.02)
    assert abs(values.mean()) < 0.0005
    assert (floats(found["model.norm.weight"][2]) == 1).all()


def test_another_seed_or_another_tensor_has_other_values() -> None:
    quantiles = synthetic.normal_quantiles()

    def draw(name: str, seed: int) -> bytes:
        return b"".join(chunk.tobytes() for chunk in synthetic.random_values(name, 1000, seed, quantiles))

    assert len({draw("a", 1), draw("a", 2), draw("b", 1)}) == 3


def test_a_chunk_boundary_does_not_show_in_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    quantiles = synthetic.normal_quantiles()
    whole = b"".join(chunk.tobytes() for chunk in synthetic.random_values("a", 1003, 1, quantiles))
    monkeypatch.setattr(synthetic, "CHUNK_VALUES", 64)
    assert b"".join(chunk.tobytes() for chunk in synthetic.random_values("a", 1003, 1, quantiles)) == whole


def test_tied_embeddings_leave_out_the_head() -> None:
    tied = SHAPE.model_copy(update={"tie_word_embeddings": True})
    assert {name for name, _ in synthetic.tensors(SHAPE)} - {name for name, _ in synthetic.tensors(tied)} == {
        "lm_head.weight"
    }


@pytest.mark.parametrize(
    ("name", "parameters"), [("qwen2.5-7b", 7_615_616_512), ("qwen2.5-0.5b", 494_032_768)]
)
def test_a_preset_has_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert sum(int(np.prod(shape)) for _, shape in synthetic.tensors(synthetic.preset(name))) == parameters


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(StudyError, match=r"qwen2\.5-7b, qwen2\.5-0\.5b"):
        synthetic.preset("qwen3-8b")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"num_attention_heads": 6}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"vocab_size": 42}, "vocab_size"),
    ],
)
def test_a_shape_that_does_not_fit_together_is_refused_by_its_key(
    change: dict[str, int], key: str, vocabulary: Path, tmp_path: Path
) -> None:
    shape = SHAPE.model_copy(update=change)
    with pytest.raises(StudyError, match=rf"model\.synthetic\.shape\.{key}"):
        synthetic.make(SyntheticModel(seed=1, shape=shape), vocabulary, tmp_path / "model")


def test_a_vocabulary_that_is_not_qwens_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_qwen2_vocabulary(path, [*CONTROL, "a"], words="smollm")
    with pytest.raises(FormatError, match="not Qwen2's"):
        synthetic.make(SyntheticModel(seed=1, shape=SHAPE), path, tmp_path / "model")


def test_the_source_says_that_the_weights_are_random(vocabulary: Path, tmp_path: Path) -> None:
    source = synthetic.make(SyntheticModel(seed=1, shape=SHAPE), vocabulary, tmp_path / "model")
    assert source["note"].startswith("Random weights") and "quality can't" in source["note"]
