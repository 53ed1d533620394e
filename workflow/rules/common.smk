"""The study, the recipe param, and the guard against two runs in one folder."""

import fcntl
import os
import re
import sys
from pathlib import Path

from snakemake.settings.types import ExecMode  # isort: skip

from reproquant import external
from reproquant.errors import ReproquantError
from reproquant.files import write_json
from reproquant.recipe import recipe_digest
from reproquant.study import Study

shell.prefix(f"set -euo pipefail; export PATH={Path(sys.executable).parent}:$PATH; ")

try:
    STUDY = Study.resolve(config)
    external.check(STUDY)
except ReproquantError as error:
    sys.exit(str(error))

# The proof that a build for GPUs is one; a build for the CPU has none.
MACHINE_CODE = ["results/{study}/llama_cpp/machine_code.json"] if STUDY.llama_cpp.backend == "cuda" else []

MEASUREMENTS = expand(
    "results/{{study}}/bench/{subject}.json", subject=[subject.name for subject in STUDY.subjects]
)
TELEMETRY = [path.replace(".json", ".telemetry.json") for path in MEASUREMENTS]
# What vLLM's own source says about GPUs, if a subject runs in it.
CAPABILITIES = ["results/{study}/vllm/capabilities.json"] if "vllm" in STUDY.roles else []


wildcard_constraints:
    study=re.escape(STUDY.name),
    environment=r"[\w.-]+",
    checkpoint=r"[\w.-]+",
    type=r"\w+",
    subject="|".join(re.escape(subject.name) for subject in STUDY.subjects),


def recipe(stage):
    """A param function: the digest of the stage's recipe for the job's wildcards."""

    def digest(wildcards):
        others = {name: value for name, value in wildcards.items() if name != "study"}
        return recipe_digest(stage, STUDY, **others)

    return digest


def model_inputs(wildcards):
    """Synthetic weights take their tokenizer out of llama.cpp's source."""
    if STUDY.model.source == "synthetic":
        return {"llama_cpp": f"results/{wildcards.study}/llama_cpp/source.json"}
    return {}


def benchmark_inputs(wildcards):
    """What a subject's engine is made of and proven by, and the weights that it serves."""
    root = f"results/{wildcards.study}"
    subject = STUDY.subject(wildcards.subject)
    if subject.engine == "vllm":
        own = {"checkpoint": "model/manifest.json", "fp8": "fp8/manifest.json"}
        weights = own.get(subject.artifact, f"checkpoints/{subject.artifact}/manifest.json")
        engine = f"environments/{STUDY.environments.name('vllm')}.json"
    else:
        weights, engine = f"gguf/{subject.artifact}.gguf", "llama_cpp/build.json"
    proof = MACHINE_CODE if subject.engine == "llama_cpp" else CAPABILITIES
    return {
        "weights": f"{root}/{weights}",
        "engine": f"{root}/{engine}",
        "proof": [path.format(study=wildcards.study) for path in proof],
    }


def evaluated(wildcards):
    """The weights that are scored; a GGUF is scored by llama.cpp too."""
    root, artifact = f"results/{wildcards.study}", wildcards.artifact
    if artifact in ("f16", *STUDY.gguf.quantizations):
        return {"weights": f"{root}/gguf/{artifact}.gguf", "llama_cpp": f"{root}/llama_cpp/build.json"}
    made_for_it = STUDY.fp8_variant(artifact) is not None
    return {"weights": f"{root}/{'model' if made_for_it else 'fp8'}/manifest.json"}


def clear_locks_of_the_dead(folder=Path(".snakemake")):
    """Remove Snakemake's locks when the run that left them is gone.

    A run holds a kernel lock for as long as it lives, so a lock of Snakemake's
    without that one belongs to nobody.
    """
    folder.mkdir(exist_ok=True)
    holder = os.open(folder / "reproquant.alive", os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    for left in (folder / "locks").glob("*.lock"):
        print(f"cleared {left}: the run that held it is gone", file=sys.stderr)
        left.unlink()


if workflow.exec_mode == ExecMode.DEFAULT and not workflow.dryrun:
    clear_locks_of_the_dead()


localrules:
    all,


onstart:
    write_json(Path(f"results/{STUDY.name}/study.json"), STUDY.dump())
    if workflow.local_exec:  # a cluster's login node says nothing about its GPUs
        running = sorted({job.rule.name for job in workflow.dag.needrun_jobs()})
        shell(
            f"python scripts/doctor.py --study results/{STUDY.name}/study.json --running {' '.join(running)}"
            f" --output results/{STUDY.name}/doctor.json"
        )
