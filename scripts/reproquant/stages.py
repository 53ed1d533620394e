"""The stages, as data: what each one reads of the study, which locks and which data files.

A stage named ``x`` is the rule ``x``, the program ``scripts/x.py`` and the entry
``x`` here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from reproquant.study import InContainer, Study


def _nothing(study: Study, **wildcards: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Stage:
    """What a stage depends on besides its input files and its script's imports.

    ``slice`` gives the part of the study that the stage reads, as JSON data;
    ``locks`` the environments it runs in; ``files`` the data files it reads,
    relative to the repository; ``modules`` what it runs with another
    environment's Python, where imports can't show it; ``packages`` the packages
    of the workflow's own environment whose version can change the result.
    ``kept`` says whether finished results are kept in the store, to answer the
    same work again: by recipe and inputs, or also by the machine. What has a
    store of its own, is cheap, or reads what isn't pinned isn't kept.
    """

    slice: Callable[..., Any]
    locks: Callable[..., tuple[str, ...]] = _nothing
    files: Callable[..., tuple[str, ...]] = _nothing
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    kept: Literal["no", "by recipe", "by recipe and machine"] = "no"


def _model(study: Study) -> Any:
    return study.dump()["model"]


def _checkpoint(study: Study, checkpoint: str) -> Any:
    settings = study.dump()["checkpoints"][checkpoint]
    return {key: settings[key] for key in ("source", settings["source"])}


def _llama_cpp(study: Study) -> Any:
    return study.dump()["llama_cpp"]


def _llama_cpp_source(study: Study) -> Any:
    settings = _llama_cpp(study)
    return {key: settings[key] for key in ("source", settings["source"])}


def _bench(study: Study, subject: str) -> Any:
    chosen = study.subject(subject)
    own = {"vllm": study.dump()["vllm"], **_container(study)} if chosen.engine == "vllm" else {}
    workload = study.benchmark.model_dump(
        mode="json", exclude={"baseline": True, "limits": {"baseline_drift_percent"}}
    )
    return {
        "subject": chosen.model_dump(mode="json"),
        "benchmark": workload,
        "gpus": study.machine.gpus,
        "bandwidth_gb_per_s": study.machine.bandwidth_gb_per_s if chosen.gpus else None,
        **own,
    }


def _container(study: Study) -> dict[str, Any]:
    """How vLLM's container is run; nothing for a vLLM that runs in none."""
    chosen = study.environments.vllm
    return chosen.model_dump(mode="json") if isinstance(chosen, InContainer) else {}


def _environment(study: Study, environment: str) -> Any:
    """For a container how it is run, which its artifact tells, and the vLLM that must be in it."""
    of_vllm = environment == study.environments.name("vllm")
    if not (of_vllm and _container(study)):
        return environment
    return {"name": environment, **_container(study), "vllm": study.vllm.version}


def _bench_locks(study: Study, subject: str) -> tuple[str, ...]:
    return (study.environments.name("vllm"),) if study.subject(subject).engine == "vllm" else ()


def _bench_files(study: Study, subject: str) -> tuple[str, ...]:
    return (study.benchmark.prompt, *(FP8_PLUGIN if study.subject(subject).emulated else ()))


def _evaluated(study: Study, artifact: str) -> Any:
    """A variant of the FP8 checkpoint is made for its evaluation; of the others only the name matters."""
    variant = study.fp8_variant(artifact)
    return {"artifact": artifact, "fp8": variant.model_dump(mode="json") if variant else None}


def _evaluation_files(study: Study, artifact: str) -> tuple[str, ...]:
    return (study.fp8.calibration.text,) if study.fp8_variant(artifact) else ()


def _report(study: Study) -> Any:
    return study.dump()


FP8_PLUGIN = tuple(
    f"workflow/plugins/fp8_emulated/{name}"
    for name in (
        "reproquant_fp8_emulated/__init__.py",
        "reproquant_fp8_emulated/arithmetic.py",
        "reproquant_fp8_emulated/method.py",
        "reproquant_fp8_emulated-1.0.dist-info/METADATA",
        "reproquant_fp8_emulated-1.0.dist-info/entry_points.txt",
    )
)
"""All of the plugin that an emulated subject's server loads."""

REPORT_FILES = tuple(
    f"workflow/report/{name}"
    for name in (
        "index.html.j2",
        "report.md.j2",
        "drift.html.j2",
        "drift.md.j2",
        "proofs.html.j2",
        "proofs.md.j2",
        "quality.html.j2",
        "quality.md.j2",
        "efficiency.html.j2",
        "efficiency.md.j2",
        "cards.html.j2",
        "cards.md.j2",
        "style.css",
        "page.js",
    )
)

CLAIMS_FILES = (
    "workflow/claims/v100-article.yaml",
    "workflow/report/claims.html.j2",
    "workflow/report/claims.md.j2",
)

MEASURING = Stage(
    slice=_bench,
    locks=_bench_locks,
    files=_bench_files,
    modules=(
        "reproquant.engines.in_vllm.latency",
        "reproquant.machine.copy_on_gpu",
        "reproquant.machine.copy_on_cpu",
    ),
    packages=("aiohttp", "gguf", "numpy", "nvidia-ml-py", "psutil"),
    kept="by recipe and machine",
)

STAGES = {
    "build_environment": Stage(slice=_environment, locks=lambda study, environment: (environment,)),
    "read_vllm": Stage(slice=lambda study: None, locks=lambda study: (study.environments.name("vllm"),)),
    "fetch_llama_cpp": Stage(slice=_llama_cpp_source),
    "build_llama_cpp": Stage(slice=_llama_cpp),
    "prove_cuda": Stage(slice=lambda study: _llama_cpp(study)["cuda_architectures"]),
    "fetch_model": Stage(slice=_model, packages=("gguf", "huggingface-hub", "numpy", "safetensors")),
    "fetch_checkpoint": Stage(slice=_checkpoint, packages=("huggingface-hub",)),
    "convert_gguf": Stage(
        slice=lambda study: study.model.name,
        locks=lambda study: (study.environments.name("converter"),),
        kept="by recipe",
    ),
    "quantize_gguf": Stage(slice=lambda study, type: type, kept="by recipe"),
    "inspect_gguf": Stage(slice=lambda study, type: type, packages=("gguf",), kept="by recipe"),
    "quantize_fp8": Stage(
        slice=lambda study: study.dump()["fp8"],
        locks=lambda study: (study.environments.name(study.fp8_role),),
        files=lambda study: (study.fp8.calibration.text,),
        modules=("reproquant.fp8.quantize", "reproquant.fp8.autofp8"),
        kept="by recipe",
    ),
    "benchmark": MEASURING,
    "benchmark_again": MEASURING,
    "evaluate_original": Stage(
        slice=lambda study: {"text": study.quality.text, "chunks": study.quality.chunks},
        locks=lambda study: (study.environments.name("fp8"),),
        files=lambda study: (study.quality.text,),
        modules=("reproquant.quality.evaluate",),
        kept="by recipe",
    ),
    "evaluate_quality": Stage(
        slice=_evaluated,
        locks=lambda study, artifact: (study.environments.name("fp8"),),
        files=_evaluation_files,
        modules=("reproquant.quality.evaluate", "reproquant.fp8.quantize"),
        packages=("gguf", "numpy", "safetensors"),
        kept="by recipe",
    ),
    "report": Stage(
        slice=_report, files=lambda study: (*REPORT_FILES, *CLAIMS_FILES), packages=("jinja2", "matplotlib")
    ),
}
