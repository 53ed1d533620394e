"""Evaluate artifacts: the main environment's side of ``reproquant.quality.evaluate``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reproquant.files import read_json, repository, sha256_file
from reproquant.fp8 import checkpoint
from reproquant.gguf.dequantize import dequantize
from reproquant.model.manifest import Manifest
from reproquant.quality import llama_perplexity
from reproquant.quality.result import BaseFile, Original, Quality
from reproquant.study import Fp8
from reproquant.study import Quality as Settings
from reproquant.toolchain.interpreter import Interpreter
from reproquant.toolchain.llama_cpp import Build


@dataclass(frozen=True)
class Evaluator:
    """Where evaluations run: the fp8 environment, the original checkpoint, a folder for scratch files.

    ``tell`` gets lines of progress.
    """

    environment: Interpreter
    model: Manifest
    scratch: Path
    log: Path
    tell: Callable[[str], None]

    def original(self, settings: Settings, folder: Path) -> Original:
        """Score the unquantized checkpoint in float32 and write the base file into ``folder``."""
        folder.mkdir()
        base = folder / "logits.bin"
        options = {"--text": repository() / settings.text, "--chunks": settings.chunks}
        facts = self._run("original", self.model.directory, base, options)
        return Original(
            artifact="checkpoint",
            method="original",
            artifact_bytes=self.model.weight_bytes,
            kept=True,
            directory=folder.name,
            files=[BaseFile(path=base.name, bytes=base.stat().st_size, sha256=sha256_file(base))],
            **facts,
        )

    def gguf(self, type: str, file: Path, base: Path, tools: Build, threads: int) -> Quality:
        """Score a GGUF both ways: its weights dequantized and computed with in float32, and by llama.cpp.

        llama.cpp's CPU kernels also quantize activations to 8 bits, so its divergence is larger.
        """
        with TemporaryDirectory(dir=self.scratch) as folder:
            dequantize(file, self.model.directory, Path(folder))
            facts = self._run("against", Path(folder), base, {"--activations": "float"})
        return Quality(
            artifact=type,
            method="weights only",
            artifact_bytes=file.stat().st_size,
            kept=True,
            llama_cpp=llama_perplexity.measure(file, base, tools, threads, self.log),
            **facts,
        )

    def fp8(self, made: Manifest, base: Path) -> Quality:
        """Score an FP8 checkpoint as vLLM's W8A8 kernels would compute it."""
        return self._fp8("fp8", made.directory, base, kept=True)

    def fp8_w8a16(self, made: Manifest, base: Path) -> Quality:
        """Score an FP8 checkpoint's weights alone, as vLLM's W8A16 kernels use them."""
        facts = self._run("against", made.directory, base, {"--activations": "float"})
        return Quality(
            artifact="fp8-w8a16",
            method="W8A16 emulated",
            artifact_bytes=made.weight_bytes,
            kept=True,
            **facts,
        )

    def fp8_variant(self, name: str, settings: Fp8, base: Path) -> Quality:
        """Make an FP8 checkpoint with other settings, score it like ``fp8``, and throw it away."""
        with TemporaryDirectory(dir=self.scratch) as folder:
            made = Path(folder) / "checkpoint"
            unfinished = Path(folder) / "unfinished"
            checkpoint.make(self.model, settings, self.environment, made, unfinished, self.log, self.tell)
            return self._fp8(name, made, base, kept=False)

    def _fp8(self, name: str, directory: Path, base: Path, kept: bool) -> Quality:
        facts = self._run("against", directory, base, {"--activations": "quantized"})
        return Quality(
            artifact=name,
            method="W8A8 emulated",
            artifact_bytes=sum(file.stat().st_size for file in directory.glob("*.safetensors")),
            kept=kept,
            **facts,
        )

    def _run(self, command: str, weights: Path, base: Path, options: dict[str, object]) -> dict[str, Any]:
        facts = self.scratch / "facts.json"
        words = {"--weights": weights, "--base": base, "--facts": facts, **options}
        flat = [word for pair in words.items() for word in pair]
        self.environment.run_module("reproquant.quality.evaluate", [command, *flat], self.log, self.tell)
        return dict(read_json(facts))
