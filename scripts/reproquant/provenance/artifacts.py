"""The artifacts that a study must have: what each stage takes and makes, for every value of its wildcards.

The rules in ``workflow/rules`` say the same to Snakemake; a test holds them equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reproquant.study import Role, Study, Subject

REPORT = "report/report.json"


@dataclass(frozen=True)
class Artifact:
    """One stage's work. Paths are relative to the results directory.

    ``inputs`` and ``outputs`` go by the option with which the stage's program
    is given them (more than one input may have the same), the output that the
    record stands beside by ``output``.
    """

    stage: str
    inputs: tuple[tuple[str, str], ...]
    outputs: dict[str, str]
    wildcards: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The output that gives the artifact its name."""
        return self.outputs["output"]

    @property
    def needs(self) -> list[str]:
        """The inputs, sorted."""
        return sorted({path for _, path in self.inputs})

    @property
    def record(self) -> str:
        return self.main + ".prov.json"


def artifacts(study: Study) -> tuple[Artifact, ...]:
    """Every artifact of a study, each after those that it is made from."""
    types = ("f16", *study.gguf.quantizations)
    source, build, model = "llama_cpp/source.json", "llama_cpp/build.json", "model/manifest.json"
    converter = _environment(study, "converter")
    return (
        *(
            Artifact("build_environment", (), {"output": f"environments/{name}.json"}, {"environment": name})
            for name in dict.fromkeys(map(study.environments.name, study.roles))
        ),
        *(
            Artifact("read_vllm", (("environment", _environment(study, "vllm")),), {"output": capabilities})
            for capabilities in _capabilities(study)
        ),
        Artifact("fetch_llama_cpp", (), {"output": source}),
        Artifact("build_llama_cpp", (("source", source),), {"output": build}),
        *(
            Artifact("prove_cuda", (("llama-cpp", build),), {"output": machine_code})
            for machine_code in _machine_code(study)
        ),
        Artifact(
            "fetch_model",
            (("llama-cpp", source),) if study.model.source == "synthetic" else (),
            {"output": model},
        ),
        *(
            Artifact("fetch_checkpoint", (), {"output": manifest}, {"checkpoint": name})
            for name, manifest in _checkpoints(study).items()
        ),
        Artifact(
            "convert_gguf",
            (("model", model), ("source", source), ("environment", converter)),
            {"output": "gguf/f16.gguf"},
        ),
        *(
            Artifact(
                "quantize_gguf",
                (("f16", "gguf/f16.gguf"), ("llama-cpp", build)),
                {"output": f"gguf/{type}.gguf"},
                {"type": type},
            )
            for type in study.gguf.quantizations
        ),
        *(
            Artifact(
                "inspect_gguf",
                (("gguf", f"gguf/{type}.gguf"),),
                {"output": f"gguf/{type}.inspect.json"},
                {"type": type},
            )
            for type in types
        ),
        Artifact(
            "quantize_fp8",
            (("model", model), ("environment", _environment(study, study.fp8_role))),
            {"facts": "fp8/facts.json", "output": "fp8/manifest.json"},
        ),
        *(_benchmark(study, subject) for subject in study.subjects),
        _benchmark_again(study),
        *_quality(study),
        _report(study, types),
    )


def _machine_code(study: Study) -> list[str]:
    """The proof that a build for GPUs is one; a build for the CPU has none."""
    return ["llama_cpp/machine_code.json"] if study.llama_cpp.backend == "cuda" else []


def _checkpoints(study: Study) -> dict[str, str]:
    """The manifests of the checkpoints that others have quantized, by name."""
    return {name: f"checkpoints/{name}/manifest.json" for name in study.checkpoints}


def _capabilities(study: Study) -> list[str]:
    """What vLLM's own source says about GPUs, if a subject runs in it."""
    return ["vllm/capabilities.json"] if "vllm" in study.roles else []


def _environment(study: Study, role: Role) -> str:
    return f"environments/{study.environments.name(role)}.json"


def _benchmark(study: Study, subject: Subject) -> Artifact:
    if subject.engine == "vllm":
        own = {"checkpoint": "model/manifest.json", "fp8": "fp8/manifest.json"}
        weights = {**own, **_checkpoints(study)}[subject.artifact]
        engine, proof = _environment(study, "vllm"), _capabilities(study)
    else:
        weights, engine = f"gguf/{subject.artifact}.gguf", "llama_cpp/build.json"
        proof = _machine_code(study)
    return Artifact(
        "benchmark",
        (("weights", weights), ("engine", engine), *(("proof", path) for path in proof)),
        {"output": f"bench/{subject.name}.json", "telemetry": f"bench/{subject.name}.telemetry.json"},
        {"subject": subject.name},
    )


def _benchmark_again(study: Study) -> Artifact:
    """The baseline's second measurement, which comes after all subjects."""
    name = study.benchmark.baseline
    baseline = _benchmark(study, study.subject(name))
    return Artifact(
        "benchmark_again",
        (*baseline.inputs, *(("subjects", path) for path in _measurements(study))),
        {"output": f"bench/again/{name}.json"},
        {"subject": name},
    )


def _measurements(study: Study) -> list[str]:
    return [f"bench/{subject.name}.json" for subject in study.subjects]


def _quality(study: Study) -> list[Artifact]:
    """The evaluations: the original's, which the others read, and one for each artifact asked for."""
    chosen = study.quality.artifacts
    if not chosen:
        return []
    common = (("model", "model/manifest.json"), ("environment", _environment(study, "fp8")))
    original = Artifact("evaluate_original", common, {"output": "quality/checkpoint.json"})
    return [original, *(_evaluation(study, artifact, common) for artifact in chosen)]


def _evaluation(study: Study, artifact: str, common: tuple[tuple[str, str], ...]) -> Artifact:
    own = {"weights": f"{'model' if study.fp8_variant(artifact) else 'fp8'}/manifest.json"}
    if artifact in ("f16", *study.gguf.quantizations):
        own = {"weights": f"gguf/{artifact}.gguf", "llama-cpp": "llama_cpp/build.json"}
    return Artifact(
        "evaluate_quality",
        (*common, ("original", "quality/checkpoint.json"), *own.items()),
        {"output": f"quality/{artifact}.json"},
        {"artifact": artifact},
    )


def _report(study: Study, types: tuple[str, ...]) -> Artifact:
    read = [
        "model/manifest.json",
        "llama_cpp/build.json",
        *_machine_code(study),
        *_capabilities(study),
        *(f"gguf/{type}.inspect.json" for type in types),
        "fp8/manifest.json",
        *_checkpoints(study).values(),
        *_measurements(study),
        *(f"bench/{subject.name}.telemetry.json" for subject in study.subjects),
        _benchmark_again(study).main,
        *(one.main for one in _quality(study)),
    ]
    return Artifact(
        "report",
        tuple(("results", path) for path in read),
        {
            "html": "report/index.html",
            "markdown": "report/report.md",
            "claims": "report/claims.json",
            "output": REPORT,
        },
    )
