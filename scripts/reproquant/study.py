"""The study: one validated description of a model, tools, artifacts and subjects.

This is the only reader of study files. Everything else gets a ``Study`` or a
slice of one. Where several kinds of a thing exist (a model's source, llama.cpp's
source), each kind has its own section and one key picks it, so that a study laid
over another need not unset what it doesn't use; unpicked sections are dropped
from the resolved study.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from reproquant.errors import StudyError
from reproquant.files import read_json, repository

EXTERNAL, CONTAINER = "external-", "container-"
Slug = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
ExactVersion = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)*([.+-]?[A-Za-z]+[A-Za-z0-9.]*)?$")]
PositiveInt = Annotated[int, Field(gt=0)]
CheckpointName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9.-]*$")]
QuantType = Annotated[str, StringConstraints(pattern=r"^(I?Q\d_[A-Z0-9_]+|BF16|F32)$")]


class Section(BaseModel):
    """A part of a study: no unknown keys, no silent conversions, read only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HubModel(Section):
    """A repository on the Hugging Face Hub at one commit."""

    repository: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
    revision: Commit = Field(description="the commit, 40 hex digits; a branch or tag moves")
    licence: str


class LocalModel(Section):
    """A checkpoint in a directory of this machine."""

    path: str = Field(description="directory with config.json and *.safetensors")
    licence: str


class EmbeddedModel(Section):
    """SmolLM2-135M-Instruct out of a pinned Python package, zero-padded for K-quants."""

    package: str
    version: ExactVersion
    sha256: Sha256 = Field(description="of the wheel")
    width: PositiveInt = Field(description="hidden size after zero-padding; a multiple of 256")
    licence: str


class Shape(Section):
    """The shape of a Qwen2 decoder, in config.json's own words."""

    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    vocab_size: PositiveInt
    tie_word_embeddings: bool


class SyntheticModel(Section):
    """Seeded random weights (bfloat16) of a given shape, with Qwen's real tokenizer."""

    seed: int
    preset: Literal["qwen2.5-7b", "qwen2.5-0.5b"] | None = None
    shape: Shape | None = None

    @model_validator(mode="after")
    def _one_shape(self) -> SyntheticModel:
        if (self.preset is None) == (self.shape is None):
            raise ValueError("give either a preset or a shape")
        return self


class Model(Section):
    """The model under study."""

    name: Slug = Field(description="what the engines serve it as and what the GGUF's metadata says")
    source: Literal["hub", "local", "embedded", "synthetic"]
    hub: HubModel | None = None
    local: LocalModel | None = None
    embedded: EmbeddedModel | None = None
    synthetic: SyntheticModel | None = None

    @property
    def spec(self) -> HubModel | LocalModel | EmbeddedModel | SyntheticModel:
        """The section that ``source`` picks."""
        return getattr(self, self.source)


class Checkpoint(Section):
    """A checkpoint that somebody else has quantized, for subjects whose ``artifact`` is its name."""

    quantization: Slug = Field(description="vLLM's name for how it is quantized, such as gptq")
    source: Literal["hub", "local"]
    hub: HubModel | None = None
    local: LocalModel | None = None

    @property
    def spec(self) -> HubModel | LocalModel:
        """The section that ``source`` picks."""
        return getattr(self, self.source)


class Machine(Section):
    """The machine that the study is for; what was found on it stands in the records."""

    gpus: int = Field(ge=0)
    gpu: str | None = Field(default=None, description="the product's name as NVML gives it")
    compute_capability: Annotated[str, StringConstraints(pattern=r"^\d+\.\d$")] | None = None
    memory_gib_per_gpu: PositiveInt | None = None
    bandwidth_gb_per_s: PositiveInt | None = Field(
        default=None, description="of one GPU's memory, from its data sheet"
    )


class GitSource(Section):
    """llama.cpp from git at one commit."""

    repository: str
    commit: Commit
    build_number: PositiveInt = Field(description="what the binaries report as build number")


class SdistSource(Section):
    """llama.cpp as a Python package's sdist vendors it."""

    package: str
    version: ExactVersion
    sha256: Sha256 = Field(description="of the sdist")
    commit: Commit = Field(description="of llama.cpp inside it; checked where the sdist records it")
    build_number: PositiveInt


class LlamaCpp(Section):
    """Which llama.cpp, and how it is built."""

    source: Literal["git", "sdist"]
    git: GitSource | None = None
    sdist: SdistSource | None = None
    backend: Literal["cpu", "cuda"]
    cpu_instructions: tuple[Literal["SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "AVX512"], ...] = Field(
        description="named, because -march=native would make the bytes depend on the builder"
    )
    cuda_architectures: tuple[PositiveInt, ...] = Field(
        default=(), description="CMAKE_CUDA_ARCHITECTURES, for example 70"
    )
    cuda_toolkit: str | None = Field(
        default=None, description="root of a CUDA toolkit >= 12.0 and < 13 for sm_70"
    )

    @property
    def spec(self) -> GitSource | SdistSource:
        """The section that ``source`` picks."""
        return getattr(self, self.source)


class External(Section):
    """A Python that is there already; nothing pins its packages, so the record says what they were."""

    python: Annotated[str, StringConstraints(pattern=r"^(/|~/|[\w.-]+/)")] = Field(
        description="the interpreter's path: absolute, in the home folder (~/…), or from the repository"
    )


class Container(Section):
    """An image that holds vLLM, by digest, and the tool that runs it."""

    tool: Literal["docker", "podman"]
    image: Annotated[
        str,
        StringConstraints(pattern=r"^(\w[\w.-]*(:\d+)?/)?\w[\w.-]*(/\w[\w.-]*)*@sha256:[0-9a-f]{64}$"),
    ] = Field(description="NAME@sha256:…; a tag moves")
    python: str = Field(default="python3", description="the image's Python that holds vLLM")
    shm_gib: PositiveInt = Field(default=8, description="size of /dev/shm, through which vLLM's workers talk")


class InContainer(Section):
    """A container image that holds what a role needs."""

    container: Container


def _kind(value: Any) -> str:
    """Which kind of environment a study's value is meant to be, by its type."""
    return "(lock)" if isinstance(value, str) else "(python)"


def _kind_of_vllm(value: Any) -> str:
    """The same, where it may be a container as well."""
    inside = "container" in value if isinstance(value, dict) else isinstance(value, InContainer)
    return "(container)" if inside else _kind(value)


Lock = Annotated[Slug, Tag("(lock)")]
Python = Annotated[External, Tag("(python)")]
Environment = Annotated[Lock | Python, Discriminator(_kind)]
VllmEnvironment = Annotated[
    Lock | Python | Annotated[InContainer, Tag("(container)")], Discriminator(_kind_of_vllm)
]
Role = Literal["converter", "fp8", "vllm"]


class Environments(Section):
    """Which environment does which work: a lock's name (a file in envs/), a Python, or an image."""

    converter: Environment = Field(description="runs llama.cpp's convert_hf_to_gguf.py")
    fp8: Environment = Field(description="runs the FP8 quantizer; holds torch")
    vllm: VllmEnvironment = Field(description="holds vLLM")

    def of(self, role: Role) -> str | External | InContainer:
        """The environment that does a role's work."""
        chosen: str | External | InContainer = getattr(self, role)
        return chosen

    def name(self, role: Role) -> str:
        """What the environment of a role is called: its lock, ``external-ROLE`` or ``container-ROLE``."""
        match self.of(role):
            case str(lock):
                return lock
            case External():
                return f"{EXTERNAL}{role}"
            case _:
                return f"{CONTAINER}{role}"

    def role(self, name: str) -> Role:
        """The first role whose environment has this name; raises KeyError if there is none."""
        return {self.name(role): role for role in reversed(get_args(Role))}[name]


class Gguf(Section):
    """The GGUF files to make besides f16."""

    quantizations: tuple[QuantType, ...]


class Calibration(Section):
    """The text that static activation scales are observed on."""

    text: str = Field(description="a UTF-8 file, relative to the repository or absolute")
    form: Literal["raw", "chat"] = Field(
        default="raw",
        description="chat: the text's paragraphs two by two, as question and answer in the chat template",
    )
    rows: PositiveInt = Field(description="windows of the text")
    row_tokens: PositiveInt
    seed: int | None = Field(
        default=None, description="draws the windows; without it they are the text's first"
    )


class Fp8(Section):
    """The W8A8 checkpoint in AutoFP8's layout."""

    backend: Literal["native", "autofp8"] = Field(
        default="native",
        description="native streams layer by layer; autofp8 is the real package, which holds the whole model "
        "in memory and runs in environments.converter",
    )
    autofp8_repository: str = Field(
        default="https://github.com/neuralmagic/AutoFP8",
        description="where git gets AutoFP8 from; the commit is always the same",
    )
    activation_scales: Literal["autofp8", "corrected"] = Field(
        description="autofp8 repeats AutoFP8's calibration bug bit by bit; corrected leaves it out"
    )
    fused_scales: Literal["separate", "shared"] = Field(
        default="separate",
        description="shared: one weight scale for q, k and v, and one for gate and up, which vLLM merges; "
        "separate, as AutoFP8 does it, makes vLLM round the smaller members a second time",
    )
    activation_scheme: Literal["static", "dynamic"] = Field(
        default="static",
        description="dynamic: no calibration; the engine scales every activation when it comes",
    )
    device: Literal["cpu", "cuda"] = Field(
        default="cpu",
        description="where it computes; cuda needs a CUDA build of torch in environments.fp8, and its sums "
        "(so its input scales) may differ from a CPU's",
    )
    calibration: Calibration


class Quality(Section):
    """What every format is asked, by llama-perplexity's definition."""

    text: str = Field(
        default="workflow/data/evaluation.txt",
        description="a UTF-8 file, relative to the repository or absolute; not the calibration's",
    )
    chunks: PositiveInt = Field(
        default=4, description="how many windows of 512 tokens of the text; 255 tokens of each are scored"
    )
    artifacts: tuple[str, ...] = Field(
        default=(),
        description="f16, a GGUF quantization of this study, fp8, fp8-w8a16 (its weights alone), or "
        "fp8-VALUE: fp8 with VALUE for one of its settings, such as fp8-autofp8; none: nothing is evaluated",
    )


class Vllm(Section):
    """Which vLLM, and how every vLLM subject starts it."""

    version: ExactVersion
    dtype: Literal["float16", "bfloat16"]
    max_model_len: PositiveInt
    arguments: tuple[str, ...] = ()
    environment_variables: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*=.*$")], ...] = (
        Field(
            default=(), description="NAME=value; a list, so that a study laid over another replaces it whole"
        )
    )


NotNegative = Annotated[float, Field(ge=0)]


class Limits(Section):
    """Where a measurement stops being ``ok``; percentages are of the figure that is checked.

    Beyond a ``..._flag_percent`` a measurement is rejected, between it and the
    limit before it flagged. A spread is (max - min) / median over rounds.
    """

    warmup_percent: NotNegative = Field(
        default=2,
        description="how far warm-up requests may still move, in decode and prefill",
    )
    decode_spread_percent: NotNegative = Field(default=3, description="one request alone")
    prefill_spread_percent: NotNegative = Field(default=8, description="one request alone")
    output_spread_percent: NotNegative = Field(default=5, description="several requests at once")
    drift_percent: NotNegative = Field(
        default=1,
        description="first to last round, where every round is faster (or slower) than the one before",
    )
    start_skew_ms: NotNegative = Field(default=5, description="first to last request of a round to be sent")
    busy_percent: NotNegative = Field(
        default=20, description="share of all cores that other programs keep busy before the start; CPU only"
    )
    decode_server_percent: NotNegative = Field(
        default=1, description="the client's decode and the server's own"
    )
    decode_server_flag_percent: NotNegative = 3
    decode_native_percent: NotNegative = Field(
        default=3, description="the client's decode and the native tool's"
    )
    decode_native_flag_percent: NotNegative = 10
    ttft_over_prefill_ms: NotNegative = Field(
        default=5,
        description="time to first token less the server's prefill; this or the percentage, if larger",
    )
    ttft_over_prefill_percent: NotNegative = 10
    hot_c: NotNegative = Field(default=85, description="temperature of a GPU from which a run is rejected")
    clock_percent: NotNegative = Field(
        default=2, description="spread of the rounds' median clock: the GPUs' SM clock, or the CPU's"
    )
    energy_percent: NotNegative = Field(
        default=5, description="a GPU's energy counter and the integral of its power"
    )
    energy_flag_percent: NotNegative = Field(default=10, description="beyond it no energy is given")
    above_ceiling_percent: NotNegative = Field(
        default=5, description="decode above what the memory's bandwidth allows; beyond it is rejected"
    )
    baseline_drift_percent: NotNegative = Field(
        default=2, description="the baseline's decode before and after the other subjects"
    )


class Benchmark(Section):
    """The workload and the protocol, the same for every subject."""

    prompt: str = Field(description="a UTF-8 file; the prompts are exact token windows of it")
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt
    concurrencies: tuple[PositiveInt, ...]
    launches: PositiveInt = Field(
        default=2, description="starts of the server, among which the rounds are divided"
    )
    warmup_requests: PositiveInt = Field(description="least number of lone requests before a launch's rounds")
    warmup_at_most: PositiveInt = Field(
        default=20, description="how many there may be until their speed no longer moves"
    )
    rounds: PositiveInt
    rounds_if_unsteady: PositiveInt = Field(
        default=11, description="rounds in all if the planned ones were unsteady; never fewer than these"
    )
    native_repetitions: int = Field(
        default=5, ge=0, description="of the engine's own benchmark tool, beside the server; 0 leaves it out"
    )
    energy_seconds: int = Field(
        default=10,
        ge=0,
        description="after the rounds, requests without a pause for that long at each concurrency, where "
        "joules can be read; at least 10, as the counters are updated slowly; 0 leaves it out",
    )
    seed: int = Field(description="shuffles the rounds and draws the nonces")
    request_timeout_s: PositiveInt
    start_timeout_s: PositiveInt = Field(description="from launch to healthy")
    baseline: Slug = Field(description="the subject that the others are compared with")
    limits: Limits = Limits()

    @property
    def native_seconds(self) -> int:
        """As long as the native tool may work: each repetition, and three more, as long as a request."""
        return self.request_timeout_s * (self.native_repetitions + 3)

    @model_validator(mode="after")
    def _energy_over_ten_seconds(self) -> Benchmark:
        if 0 < self.energy_seconds < 10:
            raise ValueError(
                f"energy over {self.energy_seconds} s is as coarse as its counters; give 0, or 10 or more"
            )
        return self

    @model_validator(mode="after")
    def _each_concurrency_once(self) -> Benchmark:
        if not self.concurrencies:
            raise ValueError("there is no concurrency to measure; give at least one")
        if twice := [size for size in self.concurrencies if self.concurrencies.count(size) > 1]:
            raise ValueError(
                f"concurrency {twice[0]} stands twice, and a round sends each once; leave one out"
            )
        return self

    @model_validator(mode="after")
    def _a_round_for_each_launch(self) -> Benchmark:
        if self.launches > self.rounds:
            raise ValueError(
                f"{self.launches} launches can't share {self.rounds} rounds; give each at least one"
            )
        return self


class Subject(Section):
    """One row of the benchmark: engine x artifact x placement."""

    name: Slug
    engine: Literal["llama_cpp", "vllm"]
    artifact: str = Field(description="checkpoint, fp8, one of checkpoints, f16 or a GGUF quantization")
    gpus: int = Field(default=0, ge=0)
    split_mode: Literal["none", "layer", "tensor"] = Field(
        default="none", description="llama.cpp on several GPUs"
    )
    emulated: bool = Field(
        default=False,
        description="vLLM on fp8 without FP8 units: a plugin of this project widens the weights in each "
        "forward pass; the speed is that of the emulation, so the report doesn't rank it",
    )
    arguments: tuple[str, ...] = ()
    expected: Literal["unsupported"] | None = Field(
        default=None, description="a refusal that is known beforehand; the report says whether it came"
    )

    @field_validator("split_mode", mode="before")
    @classmethod
    def _row_is_gone(cls, value: object) -> object:
        if value == "row":
            raise ValueError(
                "row asks for an older llama.cpp: its CUDA code for split buffers was taken out (pull "
                "request 24216), and a load ends with 'device CUDA0 does not support split buffers'; "
                "use layer or tensor"
            )
        return value


class Study(Section):
    """Everything that the workflow is told."""

    name: Slug
    model: Model
    checkpoints: dict[CheckpointName, Checkpoint] = Field(
        default={}, description="by name; those that no subject serves are dropped"
    )
    machine: Machine
    llama_cpp: LlamaCpp
    environments: Environments
    gguf: Gguf
    fp8: Fp8
    quality: Quality = Quality()
    vllm: Vllm
    benchmark: Benchmark
    subjects: tuple[Subject, ...]

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a resolved study (``results/<study>/study.json``)."""
        return cls.resolve(read_json(path), str(path))

    @classmethod
    def of_files(cls, files: Sequence[Path]) -> Study:
        """Lay study files over config.yaml as Snakemake's ``--configfile`` does, and resolve the result."""
        config: dict[str, Any] = read_yaml(repository() / "config.yaml")
        for file in files:
            config = laid_over(config, read_yaml(file))
        return cls.resolve(config, ", ".join(map(str, files)) or "config.yaml")

    @classmethod
    def resolve(cls, config: dict[str, Any], where: str = "config") -> Study:
        """Validate a merged configuration and drop the sections it doesn't pick.

        Raises StudyError with one line for each wrong key: its path, what is
        wrong, what to write instead.
        """
        try:
            study = cls.model_validate_json(json.dumps(config))
        except ValidationError as error:
            raise StudyError(
                where,
                _reasons(error),
                "mend the keys named above; every key is explained in config.yaml "
                "and workflow/schemas/study.schema.json",
            ) from None
        for check in (
            _picked_sections,
            _artifacts_exist,
            _emulated_is_fp8,
            _evaluated_exist,
            _autofp8_can_do_it,
            _baseline_exists,
            _files_exist,
            _placements_fit,
            _names_are_free,
            _vllm_is_the_locked_one,
        ):
            check(study, where)
        return study._pruned()

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that some stage needs; vLLM's only if a subject runs in it."""
        serves = any(subject.engine == "vllm" for subject in self.subjects)
        return ("converter", "fp8", "vllm") if serves else ("converter", "fp8")

    def subject(self, name: str) -> Subject:
        """The subject of that name; raises StudyError that lists the names there are."""
        for subject in self.subjects:
            if subject.name == name:
                return subject
        raise StudyError(
            f"subject {name}",
            f"study '{self.name}' has no such subject",
            f"use one of: {', '.join(s.name for s in self.subjects)}",
        )

    def fp8_variant(self, artifact: str) -> Fp8 | None:
        """The FP8 settings of ``fp8-VALUE``: the study's own with that value; None for any other artifact."""
        value = artifact.removeprefix("fp8-")
        setting = next((key for key, values in FP8_SETTINGS.items() if value in values), None)
        if value == artifact or setting is None:
            return None
        return self.fp8.model_copy(update={"backend": "native", setting: value})

    @property
    def fp8_role(self) -> Role:
        """Whose environment makes the FP8 checkpoint: AutoFP8 needs transformers, as the converter does."""
        return "converter" if self.fp8.backend == "autofp8" else "fp8"

    def dump(self) -> dict[str, Any]:
        """The resolved study as JSON data."""
        return self.model_dump(mode="json", exclude_none=True)

    def _pruned(self) -> Study:
        data = self.dump()
        for section, kinds in SOURCES.items():
            for kind in set(kinds) - {data[section]["source"]}:
                data[section].pop(kind, None)
        served = {subject.artifact for subject in self.subjects}
        data["checkpoints"] = {
            name: {key: one[key] for key in ("quantization", "source", one["source"])}
            for name, one in data["checkpoints"].items()
            if name in served
        }
        return type(self).model_validate_json(json.dumps(data))


FP8_SETTINGS = {
    key: get_args(Fp8.model_fields[key].annotation)
    for key in ("activation_scales", "fused_scales", "activation_scheme")
}
OWN_CHECKPOINTS = ("checkpoint", "fp8")
"""What vLLM can serve of every study: the model itself and its FP8 checkpoint."""
SOURCES = {"model": ("hub", "local", "embedded", "synthetic"), "llama_cpp": ("git", "sdist")}

REMEDIES = (
    (
        r"^environments\.\w+\.python$",
        "give the interpreter's path, such as /opt/vllm/bin/python",
    ),
    (
        r"revision$",
        "a branch or a tag moves, so results could not be reproduced; give the commit's 40 hex digits",
    ),
    (r"commit$", "give the commit's 40 hex digits"),
    (r"version$", "give one exact version such as 0.9.2; a range or 'latest' would change under the results"),
    (r"sha256$", "give the file's sha256, 64 hex digits"),
    (
        r"^environments\.vllm\.container\.image$",
        "a tag moves, 'latest' above all; give NAME@sha256:… as 'docker image inspect NAME:TAG' (or podman) "
        "prints it under RepoDigests",
    ),
    (r"quantizations\.\d+$", "give a type that llama-quantize knows, such as Q4_K_M"),
)


def _reasons(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"] if not str(part).startswith("(")) or "the study"
        own = {
            "extra_forbidden": "there is no such key",
            "value_error": str(item.get("ctx", {}).get("error")),
        }
        message = own.get(item["type"], item["msg"])
        given = "" if item["type"] in ("missing", "extra_forbidden") else f" (given: {item['input']!r})"
        remedy = next((text for pattern, text in REMEDIES if re.search(pattern, path)), None)
        lines.append(f"{path}: {message}{given}" + (f"; {remedy}" if remedy and given else ""))
    return "\n       ".join(lines)


def _picked_sections(study: Study, where: str) -> None:
    parts: dict[str, Model | LlamaCpp | Checkpoint] = {"model": study.model, "llama_cpp": study.llama_cpp}
    parts |= {f"checkpoints.{name}": one for name, one in study.checkpoints.items()}
    for key, part in parts.items():
        if part.spec is None:
            raise StudyError(
                f"{where}: {key}.{part.source}",
                f"{key}.source is '{part.source}' but that section is missing",
                f"add the section {key}.{part.source}, or pick another source",
            )


def _artifacts_exist(study: Study, where: str) -> None:
    known = {
        "llama_cpp": ("f16", *study.gguf.quantizations),
        "vllm": (*OWN_CHECKPOINTS, *study.checkpoints),
    }
    for name in set(study.checkpoints) & {*OWN_CHECKPOINTS, "f16"}:
        raise StudyError(
            f"{where}: checkpoints.{name}", "every study has an artifact of that name", "choose another"
        )
    names = [subject.name for subject in study.subjects]
    for index, subject in enumerate(study.subjects):
        key = f"{where}: subjects.{index}"
        if names.count(subject.name) > 1:
            raise StudyError(
                f"{key}.name", f"'{subject.name}' names two subjects", "give each subject its own name"
            )
        if subject.artifact not in known[subject.engine]:
            raise StudyError(
                f"{key}.artifact",
                f"{subject.engine} can't serve '{subject.artifact}' here",
                f"use one of {', '.join(known[subject.engine])}, or add to gguf.quantizations or checkpoints",
            )


def _emulated_is_fp8(study: Study, where: str) -> None:
    for index, subject in enumerate(study.subjects):
        if subject.emulated and (subject.engine, subject.artifact) != ("vllm", "fp8"):
            raise StudyError(
                f"{where}: subjects.{index}.emulated",
                f"'{subject.name}' is {subject.artifact} in {subject.engine}; only FP8 in vLLM is emulated",
                "leave the key out, or set engine to vllm and artifact to fp8",
            )


def _evaluated_exist(study: Study, where: str) -> None:
    known = ("f16", *study.gguf.quantizations, "fp8", "fp8-w8a16")
    for index, artifact in enumerate(study.quality.artifacts):
        if artifact not in known and study.fp8_variant(artifact) is None:
            values = ", ".join(value for values in FP8_SETTINGS.values() for value in values)
            raise StudyError(
                f"{where}: quality.artifacts.{index}",
                f"'{artifact}' is nothing that could be evaluated here",
                f"use one of {', '.join(known)}, or fp8-VALUE with one of {values}",
            )


def _autofp8_can_do_it(study: Study, where: str) -> None:
    if study.fp8.backend == "native":
        return
    wanted = {"activation_scales": "autofp8", "fused_scales": "separate", "device": "cpu"}
    for key, value in wanted.items():
        if (given := getattr(study.fp8, key)) != value:
            raise StudyError(
                f"{where}: fp8.{key}",
                f"AutoFP8 itself can't do '{given}' here",
                f"set it to {value}, or fp8.backend to native",
            )


def _baseline_exists(study: Study, where: str) -> None:
    names = [subject.name for subject in study.subjects]
    if study.benchmark.baseline not in names:
        raise StudyError(
            f"{where}: benchmark.baseline",
            f"'{study.benchmark.baseline}' is an unknown subject",
            f"use one of: {', '.join(names)}",
        )


def _files_exist(study: Study, where: str) -> None:
    wanted = {
        "benchmark.prompt": repository() / study.benchmark.prompt,
        "fp8.calibration.text": repository() / study.fp8.calibration.text,
        "quality.text": repository() / study.quality.text,
        **{
            f"environments.{role}": lock_path(name)
            for role, name in study.environments.model_dump().items()
            if isinstance(name, str)
        },
    }
    for key, path in wanted.items():
        if not path.is_file():
            raise StudyError(
                f"{where}: {key}",
                f"there is no file {path}",
                "correct the name, or run 'make lock' for a new lock",
            )


def _placements_fit(study: Study, where: str) -> None:
    for index, subject in enumerate(study.subjects):
        if subject.gpus > study.machine.gpus:
            raise StudyError(
                f"{where}: subjects.{index}.gpus",
                f"'{subject.name}' wants {subject.gpus} GPUs but machine.gpus is {study.machine.gpus}",
                "lower the subject's gpus or correct the machine",
            )


def _names_are_free(study: Study, where: str) -> None:
    for role, name in study.environments.model_dump().items():
        if isinstance(name, str) and name.startswith((EXTERNAL, CONTAINER)):
            raise StudyError(
                f"{where}: environments.{role}",
                f"'{name}' begins as the results of environments without a lock do",
                "give the lock another name",
            )


def _vllm_is_the_locked_one(study: Study, where: str) -> None:
    if not isinstance(study.environments.vllm, str):
        return
    lock = lock_path(study.environments.vllm)
    locked = re.search(r"^vllm(?:-cpu)?==([^\s;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if locked and locked[1] != study.vllm.version:
        raise StudyError(
            f"{where}: vllm.version",
            f"the study says {study.vllm.version} and envs/{lock.name} holds {locked[1]}",
            "give both the same: the version in the study, or the pin in the .in file and 'make lock'",
        )


def lock_path(environment: str) -> Path:
    """The lock file of an environment's name."""
    return repository() / "envs" / f"{environment}.lock"


def laid_over(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key; anything else of ``over``, lists too, replaces what ``base`` has."""
    merged = {
        key: laid_over(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in over.items()
    }
    return {**base, **merged}


def read_yaml(path: Path) -> Any:
    """A YAML file's data; raises StudyError that names the line if it can't be read."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise StudyError(path, str(error), "correct the file at the place named above") from error
