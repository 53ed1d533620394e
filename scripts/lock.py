"""Resolve every envs/NAME.in into its envs/NAME.lock: exact versions, every file's sha256.

Versions that a lock already holds are kept as long as its .in file allows them,
so a second run changes nothing; delete a lock to take the newest versions.
Comments of a .in file that are obeyed: ``# take in: FILE`` (requirements that are
copied into the lock as they stand), ``# leave out: NAMES`` (packages that no
dependency may bring in), ``# as of: DATE`` (nothing published later), ``# python: X.Y``
(the oldest Python that the lock is for, where it isn't uv.toml's), and
``# metadata only: NAME==VERSION``, which goes on into the lock, where
reproquant.toolchain.python_env obeys it.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from reproquant import process, program
from reproquant.errors import ToolError
from reproquant.files import repository, write_text

# Each one before those that are constrained by it.
NAMES = (
    "workflow",
    "dev",
    "converter",
    "fp8",
    "llm-compressor",
    "vllm-cpu",
    "vllm-v100",
    "vllm-h200",
    "crate",
    "accuracy-guidellm",
    "accuracy-aiperf",
)


def main() -> None:
    envs = repository() / "envs"
    for name in NAMES:
        print(f"envs/{name}.lock", flush=True)
        lock(envs, name)


def lock(envs: Path, name: str) -> None:
    """Write ``envs/NAME.lock``; raises ToolError with uv's last words if it can't be resolved."""
    source, target = envs / f"{name}.in", envs / f"{name}.lock"
    wishes = source.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        resolved, left_out = Path(scratch, "resolved.txt"), Path(scratch, "left-out.txt")
        if target.exists():
            shutil.copy(target, resolved)
        left_out.write_text("\n".join(word for line in said(wishes, "leave out") for word in line.split()))
        resolve = [
            uv(),
            "pip",
            "compile",
            "--quiet",
            "--config-file",
            envs / "uv.toml",
            "--excludes",
            left_out,
        ]
        options = {"as of": "--exclude-newer", "python": "--python-version"}
        chosen = [
            word
            for wish, option in options.items()
            for value in said(wishes, wish)
            for word in (option, value)
        ]
        try:
            process.run(
                [*resolve, *chosen, "--output-file", resolved, source], Path(scratch, "log"), cwd=envs
            )
        except ToolError as error:
            remedy = "loosen the version that uv names above, or check the network"
            raise ToolError(source, error.reason, remedy) from None
        taken_in = [bare((envs / file).read_text(encoding="utf-8")) for file in said(wishes, "take in")]
        metadata = [f"# metadata only: {entry}\n" for entry in said(wishes, "metadata only")]
        head = f"# Made from envs/{name}.in by `make lock`; mend that one.\n"
        write_text(target, "".join([head, *metadata, *taken_in, bare(resolved.read_text(encoding="utf-8"))]))


def said(text: str, directive: str) -> list[str]:
    """What the lines ``# DIRECTIVE: ...`` of a .in file say."""
    return re.findall(rf"^# {directive}: (.+)$", text, flags=re.MULTILINE)


def bare(requirements: str) -> str:
    """Requirements without their comments."""
    return "".join(line for line in requirements.splitlines(keepends=True) if not line.startswith("#"))


def uv() -> Path:
    """The uv that stands beside the running Python (it comes with envs/dev.lock)."""
    return Path(sys.executable).with_name("uv")


if __name__ == "__main__":
    program.run(main)
