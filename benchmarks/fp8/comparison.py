"""How two FP8 checkpoints of one model differ."""

from __future__ import annotations

import json
import struct
from pathlib import Path


def tensors(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Type and bytes of every tensor of a checkpoint."""
    found = {}
    for file in folder.glob("*.safetensors"):
        content = memoryview(file.read_bytes())
        (length,) = struct.unpack("<Q", content[:8])
        for name, entry in json.loads(bytes(content[8 : 8 + length])).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                found[name] = entry["dtype"], bytes(content[8 + length + first : 8 + length + last])
    return found


def compare(ours: Path, theirs: Path) -> None:
    """Print how many tensors of each kind are the same, and how far apart scales are."""
    own, other = tensors(ours), tensors(theirs)
    for kind in ("weight_scale", "input_scale", "weight", "bias"):
        names = [name for name in own if name.endswith(f".{kind}") and name in other]
        same = sum(own[name] == other[name] for name in names)
        print(f"  the same to the bit: {same} of {len(names)} x {kind}", end="")
        if same < len(names) and kind.endswith("_scale"):
            values = [struct.unpack("<ff", own[name][1] + other[name][1]) for name in names]
            apart = [abs(a / b - 1) for a, b in values]
            print(f"; apart by {sum(apart) / len(apart):.2%} on average, {max(apart):.2%} at most", end="")
        print()
    print(f"  tensors that only one has: {', '.join(sorted(own.keys() ^ other.keys())) or 'none'}")
