"""NVML played from a file, for tests: the real binding's names and constants, the file's answers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from reproquant.files import read_json
from reproquant.machine import condition, gpu, links, sensors

TWO_V100 = Path(__file__).parent / "replays/two-v100-sxm2-32gb.json"


class Replay:
    """What ``import pynvml`` gives to the code under test. A handle is a GPU's index."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlSystem"):
            return lambda: self.data["system"][name]
        if name.startswith("nvmlDeviceGet"):
            return lambda handle, *key: self._device(handle, name, *key)
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if "devices" not in self.data:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[SimpleNamespace]:
        known = self.data["devices"][handle].get("nvmlDeviceGetFieldValues", {})
        found = [_now(known.get(str(field))) for field in fields]
        return [
            SimpleNamespace(
                nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else pynvml.NVML_SUCCESS,
                value=SimpleNamespace(uiVal=value),
            )
            for value in found
        ]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.data["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def _device(self, handle: int, name: str, *key: Any) -> Any:
        answer = self.data["devices"][handle].get(name)
        if isinstance(answer, dict) and key:
            answer = answer.get(str(key[0]))
        answer = _now(answer)
        if answer is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if isinstance(answer, dict):
            return SimpleNamespace(**answer)
        return [SimpleNamespace(pid=pid) for pid in answer] if name.endswith("Processes") else answer


def _now(answer: Any) -> Any:
    """An answer, or what a function that stands for it gives or raises at this moment."""
    return answer() if callable(answer) else answer


def play(patch: pytest.MonkeyPatch, edit: Callable[[dict[str, Any]], object] = lambda data: None) -> None:
    """Let the machine modules see two V100, as ``edit`` changes the file's data.

    ``edit`` may put a function in an answer's place: it is asked every time.
    """
    data = copy.deepcopy(read_json(TWO_V100))
    edit(data)
    for module in (gpu, condition, links, sensors):
        patch.setattr(module, "pynvml", Replay(data))
