"""The sections of a study file: their keys, with types, units and defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

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


FP8_SETTINGS = {
    key: get_args(Fp8.model_fields[key].annotation)
    for key in ("activation_scales", "fused_scales", "activation_scheme")
}
OWN_CHECKPOINTS = ("checkpoint", "fp8")
"""What vLLM can serve of every study: the model itself and its FP8 checkpoint."""
SOURCES = {"model": ("hub", "local", "embedded", "synthetic"), "llama_cpp": ("git", "sdist")}
