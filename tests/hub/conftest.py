"""A fake Hub with a model of five files, asked by the real huggingface_hub client."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from fake_hub import FakeHub
from hub_faults import FIRST, INDEX, SECOND, TOKEN, Scene

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    noise = random.Random(7)
    fake = FakeHub(
        {
            "config.json": b'{"model_type": "qwen2"}',
            "tokenizer.json": b'{"model": 1}',
            INDEX: json.dumps({"weight_map": {"a": FIRST, "b": SECOND}}).encode(),
            FIRST: noise.randbytes(400_000),
            SECOND: noise.randbytes(213_579),
            "pytorch_model.bin": b"the same in pickle",
            "onnx/config.json": b"{}",
        }
    )
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    scene = Scene(fake, tmp_path, monkeypatch)
    scene.endpoint(fake.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(scene.cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)  # it keeps a file in the home folder
    close_session()  # the client of an earlier test has that test's proxies
    yield scene
    close_session()
    fake.close()
