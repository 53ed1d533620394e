"""The proof that a program has machine code for the GPUs that it was built for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproquant.errors import FormatError
from reproquant.toolchain import fatbin
from reproquant.toolchain.fatbin import MachineCode

GGML_KERNELS = ("mul_mat_q", "mul_mat_vec_q", "flash_attn")
"""Parts of the names of kernels that llama.cpp can't do without: products of quantized matrices, attention.

Only such a name shows whose code it is: cuBLAS and libcudadevrt bring machine code
for many architectures into any program that is linked with them.
"""


def prove(program: Path, architectures: Sequence[int], kernels: Sequence[str]) -> dict[str, Any]:
    """What ``program`` holds for GPUs, as JSON data, if that is enough.

    It is enough if there is machine code for every one of ``architectures`` (70
    is sm_70), and in it a kernel for every part of a name in ``kernels``. PTX
    isn't enough: it would be compiled on the user's machine, by a driver that
    may no longer know how. Raises FormatError that says what is there instead.
    """
    found = fatbin.machine_code(program)
    ptx = Counter(image.architecture for image in fatbin.images(program) if image.kind == "ptx")
    for architecture in architectures:
        if architecture not in found:
            raise FormatError(
                program,
                f"it has no machine code for sm_{architecture}; it holds {_summary(found, ptx)}",
                f"look in the build's log for CMAKE_CUDA_ARCHITECTURES={architecture} and build again",
            )
        missing = [part for part in kernels if not found[architecture].named(part)]
        if missing:
            some = ", ".join(kernel.name for kernel in found[architecture].kernels[:3])
            raise FormatError(
                program,
                f"its code for sm_{architecture} has no kernel named {' or '.join(missing)}; "
                f"what is there ({some or 'nothing'}) comes from another library",
                "look in the build's log for why its own kernels were left out, and build again",
            )
    return {
        "program": program.name,
        "bytes": program.stat().st_size,
        "wanted": list(architectures),
        "architectures": {str(number): _describe(code, kernels) for number, code in found.items()},
        "ptx": {str(number): count for number, count in sorted(ptx.items())},
    }


def _describe(code: MachineCode, kernels: Sequence[str]) -> dict[str, Any]:
    """Counts, and for each wanted part of a name how many kernels have it and which one is the longest."""
    chosen = {part: code.named(part) for part in kernels}
    return {
        "images": code.images,
        "kernels": len(code.kernels),
        "code_bytes": code.code_bytes,
        "named": {
            part: {
                "kernels": len(found),
                "code_bytes": sum(kernel.code_bytes for kernel in found),
                "longest": max(found, key=lambda kernel: (kernel.code_bytes, kernel.name)).name,
            }
            for part, found in chosen.items()
            if found
        },
    }


def _summary(found: dict[int, MachineCode], ptx: Counter[int]) -> str:
    code = [f"sm_{number} ({code.images} images)" for number, code in found.items()]
    virtual = [f"PTX for compute_{number} ({count} images)" for number, count in sorted(ptx.items())]
    return ", ".join([*code, *virtual]) or "nothing for any GPU"
