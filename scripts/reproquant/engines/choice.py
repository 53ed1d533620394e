"""Which engine serves a subject, and on how many cores."""

from pathlib import Path

from reproquant.engines.base import Engine
from reproquant.engines.llama_cpp import LlamaServer
from reproquant.engines.runtime import InImage, OnThisMachine, Runtime
from reproquant.engines.vllm import VllmServer
from reproquant.machine.host import cores_available
from reproquant.model.manifest import Manifest
from reproquant.study import InContainer, Study, Subject
from reproquant.toolchain import container, environments
from reproquant.toolchain.llama_cpp import Build


def for_subject(study: Study, subject: Subject, weights: Path, engine: Path, log: Path) -> Engine:
    """The engine that serves a subject, not started yet.

    ``weights`` is a GGUF or a checkpoint's manifest; ``engine`` is llama.cpp's
    build.json, and not needed for vLLM: the study tells its environment.
    llama-server gets all cores but one, which stays free for the measuring client
    (its OpenMP threads spin, and lose several times over when they have to share);
    vLLM's CPU build leaves one free by itself.
    """
    if subject.engine == "llama_cpp":
        return LlamaServer(Build.load(engine), weights, study.benchmark, max(1, cores_available() - 1))
    return VllmServer(_runtime(study, log), Manifest.load(weights).directory, study.vllm, study.benchmark)


def _runtime(study: Study, log: Path) -> Runtime:
    chosen = study.environments.vllm
    if isinstance(chosen, InContainer):
        return InImage(container.provide(chosen.container, log))
    return OnThisMachine(environments.provide(study, "vllm", log))
