"""The proof that a program has machine code for the GPUs that it was built for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproquant.errors import FormatError
from reproquant.toolchain import fatbin
from reproquant.toolchain.fatbin import Kernel

GGML_KERNELS = ("mul_mat_q", "mul_mat_vec_q", "flash_attn_ext")
"""Parts of the names of kernels that llama.cpp can't do without: products of quantized matrices, attention.

Only such a name shows whose code it is: cuBLAS and libcudadevrt bring machine code
for many architectures into any program that is linked with them.
"""

PREFIXES = {"cubin": "sm_", "ptx": "compute_", "other": "other_"}
"""nvcc's own words for machine code and PTX of an architecture."""


def prove(program: Path, architectures: Sequence[int], kernels: Sequence[str]) -> dict[str, Any]:
    """What ``describe`` says of ``program``, if it has machine code for every one of ``architectures``.

    70 is sm_70. PTX isn't machine code: it would be compiled on the user's
    machine, by a driver that may no longer know how. For every part of a name in
    ``kernels`` there must be a kernel. Raises FormatError that says what is
    there instead.
    """
    facts = describe(program, architectures, kernels)
    for architecture in architectures:
        code = facts["machine_code"].get(f"sm_{architecture}")
        if code is None:
            there = ", ".join(f"{name} ({count} images)" for name, count in facts["images"].items())
            raise FormatError(
                program,
                f"it has no machine code for sm_{architecture}; it holds {there or 'nothing for any GPU'}",
                f"look in the build's log for CMAKE_CUDA_ARCHITECTURES={architecture} and build again",
            )
        missing = [part for part in kernels if part not in code["named"]]
        if missing:
            raise FormatError(
                program,
                f"its code for sm_{architecture} has no kernel named {' or '.join(missing)}: all "
                f"{code['kernels']} kernels, such as {code['longest']}, come from other sources or libraries",
                "look in the build's log for why its own kernels were left out, and build again",
            )
    return facts


def describe(program: Path, architectures: Sequence[int], kernels: Sequence[str]) -> dict[str, Any]:
    """What a file holds for GPUs, as JSON data.

    ``images`` counts all machine code (``sm_70``) and PTX (``compute_70``);
    ``machine_code`` has the kernels of those of ``architectures`` that are there,
    and apart those with a part of their name in ``kernels``.
    """
    held = Counter((image.kind, image.architecture) for image in fatbin.images(program))
    found = fatbin.machine_code(program, architectures)
    return {
        "program": program.name,
        "bytes": program.stat().st_size,
        "images": {f"{PREFIXES[kind]}{number}": count for (kind, number), count in sorted(held.items())},
        "machine_code": {
            f"sm_{number}": {
                "images": code.images,
                **_sums(code.kernels),
                "named": {part: _sums(named) for part in kernels if (named := code.named(part))},
            }
            for number, code in found.items()
        },
    }


def _sums(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """How many kernels, how much code, and the name of the longest."""
    longest = max(kernels, key=lambda kernel: (kernel.code_bytes, kernel.name), default=None)
    return {
        "kernels": len(kernels),
        "code_bytes": sum(kernel.code_bytes for kernel in kernels),
        "longest": longest.name if longest else None,
    }
