"""What a run has finished, kept on disk so that a killed one can be continued at its next layer.

Beside the finished shards there is a folder with ``progress.json``, replaced after
every layer, and two files of hidden states: what went into the layer at work, and
what has come out of it so far. Whatever a killed process left is believed only if
its sha256 is the recorded one.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from reproquant.files import read_json, sha256_file, write_json
from reproquant.fp8.shards import bytes_of, take

PROGRESS = "progress.json"


@dataclass
class Progress:
    """``layers`` are finished; ``states`` and ``shards`` are the sha256 of what they left.

    ``task`` is the digest of what is being made: other work is never continued.
    """

    task: str
    layers: int = 0
    states: str = ""
    shards: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        write_json(folder / PROGRESS, asdict(self))


def taken_over(folder: Path, target: Path, task: str) -> Progress:
    """The progress of a killed run of the same task, or none, with both folders emptied.

    ``folder`` holds progress and hidden states, ``target`` the shards.
    """
    try:
        left = Progress(**read_json(folder / PROGRESS))
        whole = left.task == task and sha256_file(states_file(folder, left.layers)) == left.states
        if whole and all(sha256_file(target / name) == digest for name, digest in left.shards.items()):
            return left
        print("what an earlier run left is of other work or damaged: starting anew", flush=True)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, AttributeError) as error:
        print(f"what an earlier run left can't be read: starting anew ({error})", flush=True)
    for used in (folder, target):
        shutil.rmtree(used, ignore_errors=True)
        used.mkdir(parents=True)
    return Progress(task)


def states_file(folder: Path, layer: int) -> Path:
    """The hidden states that go into a layer; what comes out of it never replaces them."""
    return folder / f"states-{layer % 2}.bin"


def read_states(file: Path, rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[Tensor]:
    """The hidden states, each of ``shape``, one at a time in memory."""
    with file.open("rb") as stream:
        for _ in range(rows):
            yield take(stream, dtype, shape)


def write_states(file: Path, states: Iterable[Tensor]) -> str:
    """Write hidden states as they come, and return the file's sha256."""
    digest = hashlib.sha256()
    with file.open("wb") as stream:
        for state in states:
            content = bytes_of(state)
            stream.write(content)
            digest.update(content)
    return digest.hexdigest()


def line(layer: int, layers: int, each_s: float) -> str:
    """What a person is told when ``layer`` (the first is 1) is finished; ``each_s`` is what a layer takes."""
    return f"layer {layer} of {layers}: {each_s:.1f} s a layer, {in_words(each_s * (layers - layer))} left"


def in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
