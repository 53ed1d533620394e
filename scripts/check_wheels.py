"""Check that the wheels of vLLM's lock for old GPUs hold machine code for them.

Runs on any machine: nothing is installed and no GPU is needed, but the wheels are
1.3 GB. Prints a row for each library that has such code.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from reproquant.errors import ReproquantError
from reproquant.files import store
from reproquant.study import lock_path
from reproquant.toolchain.wheels import fetch, prove_wheel

KERNELS = {
    "vllm": ("paged_attention", "rms_norm"),
    "torch": ("fmha_cutlassF_f16", "vectorized_elementwise_kernel"),  # the first is what xformers calls
    "xformers": ("sputnik",),
}
"""Parts of the names of kernels that each package must bring for a V100."""


def main(environment: str = "vllm-v100", architecture: int = 70) -> None:
    log = store() / "logs" / "check_wheels.log"
    failures = []
    print(f"| wheel | library | sm_{architecture} images | kernels | MB of code | of them named |")
    print("|---|---|---|---|---|---|")
    for package, kernels in KERNELS.items():
        try:
            wheel = fetch(lock_path(environment), package, log)
            for facts in prove_wheel(wheel, architecture, kernels):
                print(row(wheel, facts, f"sm_{architecture}"), flush=True)
        except ReproquantError as error:
            failures.append(error)
    for error in failures:
        print(error, file=sys.stderr)
    raise typer.Exit(2 if failures else 0)


def row(wheel: Path, facts: dict, architecture: str) -> str:
    """A row of the Markdown table."""
    code = facts["machine_code"][architecture]
    named = ", ".join(f"{part}: {found['kernels']}" for part, found in code["named"].items())
    release = "-".join(wheel.name.split("-")[:2])
    sizes = [code["images"], code["kernels"], f"{code['code_bytes'] / 1e6:.1f}"]
    return f"| {release} | {facts['program']} | {' | '.join(map(str, sizes))} | {named} |"


if __name__ == "__main__":
    typer.run(main)
