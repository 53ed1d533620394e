"""What a measurement file holds: every request, and what was computed from them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["ok", "flagged", "unstable", "unsupported", "rejected", "failed"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Workload(Part):
    """What was sent: exact token ids, cut from one text."""

    prompt_tokens: int
    output_tokens: int
    text_sha256: str = Field(description="of the prompt text's bytes")
    ids_sha256: str | None = Field(
        description="of the canonical JSON list of the text's ids, without nonces; null if never tokenized"
    )


class ServerTimes(Part):
    """What the server's own clock says about a request (path C)."""

    prefill_ms: float = Field(description="start of its prefill to its first token")
    decode_ms: float = Field(description="first to last token")
    output_tokens: int | None = Field(default=None, description="by the same count; null if it isn't told")
    queue_ms: float | None = Field(default=None, description="wait before the prefill, if told")
    mean_of: int = Field(
        default=1, description="requests that these times are a mean of; 1: they are its own"
    )


class Request(Part):
    """One request as the client saw it; times in milliseconds after the round's barrier."""

    launch: int = Field(description="which start of the server, from 0")
    round: int
    concurrency: int
    index: int = Field(description="place among the requests of the round, from 0")
    nonce_id: int = Field(description="token id at position 0, different in every request")
    sent_ms: float
    first_token_ms: float | None
    last_token_ms: float | None
    first_chunk_tokens: int = Field(
        default=1, description="tokens that were out with the first chunk; 1 where the server doesn't tell"
    )
    prompt_tokens: int | None = Field(description="from usage")
    completion_tokens: int | None = Field(description="from usage")
    cached_tokens: int | None = Field(description="prompt tokens the server says it took from a cache")
    server: ServerTimes | None = None
    error: str | None = None


class Round(Part):
    """What was seen beside the requests of one round at one concurrency."""

    launch: int
    round: int
    concurrency: int
    start_skew_ms: float = Field(description="first to last request to be sent")
    counted_tokens: int | None = Field(
        default=None, description="growth of the server's counter of output tokens; null if it has none"
    )


class Summary(Part):
    """Median with its range over rounds; at n = 5, [min, max] is a 93.75 % interval of the median."""

    median: float
    min: float
    max: float
    rounds: list[float]


class Level(Part):
    """The figures of one concurrency."""

    concurrency: int
    ttft_ms: Summary = Field(description="per round: median over its requests")
    prefill_tok_per_s: Summary = Field(
        description="per round: median of prompt_tokens / the server's prefill time, or TTFT if it tells none"
    )
    prefill_from: Literal["client", "server"] = Field(
        default="client", description="whose clock the prefill was taken from"
    )
    server_prefill_ms: Summary | None = Field(
        default=None, description="per round: median over its requests; null if the server tells none"
    )
    decode_tok_per_s: Summary = Field(
        description="per round: median of (completion_tokens - first_chunk_tokens) / (last - first)"
    )
    server_decode_tok_per_s: Summary | None = Field(
        default=None, description="per round: median of (tokens - 1) / the server's decode time"
    )
    output_tok_per_s: Summary = Field(description="per round: all completion tokens / (last end - barrier)")


class Check(Part):
    """Two figures that must agree, and whether they do."""

    what: str
    concurrency: int
    left_of: str = Field(description="where the left figure comes from")
    left: float
    right_of: str
    right: float
    unit: str
    difference: float = Field(description="left - right, in difference_unit")
    difference_unit: Literal["%", "ms", "tokens"] = Field(description="% is of the right figure")
    ok_within: float = Field(description="largest size of the difference that is ok")
    flagged_within: float | None = Field(
        description="beyond this it is rejected; null: never for being large"
    )
    verdict: Literal["ok", "flagged", "rejected"]
    reason: str | None = Field(description="a sentence if the verdict isn't ok")


class Native(Part):
    """The engine's own benchmark tool on the same weights and workload, one request at a time (path A)."""

    tool: str
    commands: list[list[str]] = Field(description="store and home paths replaced")
    prefill_tok_per_s: Summary = Field(description="rounds: the tool's repetitions")
    decode_tok_per_s: Summary = Field(description="rounds: the tool's repetitions")


class CardFigures(Part):
    """One GPU of the host while the subject was measured; null is what it doesn't tell.

    Medians and the highest temperature are over the rounds, from the first one's
    start to the last one's end in each launch.
    """

    index: int = Field(description="place in NVML's order")
    used: bool = Field(description="whether the subject was given this card")
    peak_bytes: int | None = Field(
        description="most memory used beside the server, less what was used before it"
    )
    temperature_c: float | None = Field(description="highest")
    sm_mhz: float | None = Field(description="median")
    power_w: float | None = Field(description="median")
    utilization_percent: float | None = Field(description="median")


class HostFigures(Part):
    """The CPU over the rounds, medians; null is what it doesn't tell."""

    server_cores: float | None = Field(description="cores that the server kept busy")
    busy_cores: float | None = Field(description="cores that all programs kept busy")
    frequency_mhz: float | None


class Watched(Part):
    """What the sampler saw; every sample stands in the telemetry file."""

    cards: list[CardFigures]
    host: HostFigures
    not_measured: dict[str, str] = Field(description="what is unknown, and why")
    sampler_cpu_percent: float = Field(description="of one core; the launch in which it took most")


class Energy(Part):
    """What tokens cost at one concurrency, over a window of requests without a pause."""

    concurrency: int
    source: Literal["counter", "integral"] = Field(
        description="the GPUs' energy counters (or the CPU packages'), or the integral of their power"
    )
    of: Literal["GPUs", "CPU packages"] = Field(
        description="whose energy; the rest of the machine is left out"
    )
    joules: float
    seconds: float
    output_tokens: int
    tokens_per_joule: float


class CardLinks(Part):
    """The NVLinks of one of the subject's cards."""

    index: int = Field(description="place in NVML's order")
    nvlinks: int = Field(description="that the card has")
    active: int = Field(description="of them, that are on")


class Pair(Part):
    """Two of the subject's cards."""

    first: int = Field(description="place in NVML's order")
    second: int
    nvlinks: int = Field(description="active ones between the two, or to a switch that joins all")
    peer_access: bool | None = Field(description="reading and writing each other's memory; null: unknown")
    joined_by: str | None = Field(description="what joins them in the PCIe tree; null: unknown")


class Said(Part):
    """The engine's own words about its way between cards."""

    about: str
    words: str = Field(description="out of the log; store and home paths replaced")


class BetweenCards(Part):
    """How a subject's cards reach each other, and which way its engine took."""

    cards: list[CardLinks]
    pairs: list[Pair]
    topology: str | None = Field(
        default=None, description="what `nvidia-smi topo -m` says of all GPUs; null: it says nothing"
    )
    said: list[Said] = Field(description="each wording once, of all launches; empty: the log tells none")


class Bandwidth(Part):
    """The bandwidth of a memory, measured when the server is gone; GB are 1e9 bytes."""

    gb_per_s: float = Field(description="the best repetition; of the slowest card if there are several")
    how: str
    array_bytes: int = Field(description="each array; a copy has two")
    cache_bytes: int | None = Field(description="of the cache before that memory; null if it isn't told")


class Ceiling(Part):
    """How fast decoding could be if nothing took time but reading what a token needs out of memory.

    ``decode_tok_per_s`` = memories x bandwidth / streamed_bytes, with the larger
    of the two bandwidths. It bounds one request alone; several at once share what
    is read, so they can be faster together.
    """

    weight_bytes: int = Field(description="of all weights that are read for each token")
    unread_bytes: int = Field(description="of weights that aren't: an input embedding gives one row a token")
    kv_bytes: int = Field(description="of keys and values at the mean context")
    context_tokens: int = Field(description="mean context over the decode steps")
    streamed_bytes: int = Field(description="weight_bytes + kv_bytes")
    memories: int = Field(description="cards that are read at the same time; 1 for a split by layers")
    study_gb_per_s: float | None = Field(description="of one card, from the study")
    measured: Bandwidth | None
    decode_tok_per_s: float | None
    simple_tok_per_s: float | None = Field(
        description="one card's bandwidth / size of the file, as articles reckon it"
    )
    share_percent: float | None = Field(description="decode of one request, of decode_tok_per_s")
    note: str | None = Field(default=None, description="why something is null, or can't be judged")


class Measurement(Part):
    """One subject, measured or refused."""

    subject: str
    engine: Literal["llama_cpp", "vllm"]
    artifact: str
    emulated: bool = Field(
        default=False, description="FP8 without FP8 units: the figures are those of an emulation"
    )
    status: Status
    reasons: list[str] = Field(description="why the status is not ok; a sentence each")
    evidence: str | None = Field(default=None, description="the engine's own words for a refusal or failure")
    expected: str | None = Field(default=None, description="the status that the study expected, if any")
    hardware: Literal["cpu", "gpu"]
    machine: dict[str, Any] = Field(
        default_factory=dict,
        description="host, GPUs, the share of all cores that was busy before the start, the client's cores",
    )
    command: list[str] = Field(description="the server's command line; store and home paths replaced")
    environment_variables: dict[str, str]
    engine_facts: dict[str, Any] = Field(description="version, commit, build: what describe() gave")
    artifact_bytes: int = Field(description="size of the weights that the engine loads")
    workload: Workload
    cache_off: list[str] = Field(description="what turned prefix caching off, and the proof that it was off")
    start_s: list[float] = Field(description="launch to healthy, one value a launch")
    peak_rss_bytes: int | None = Field(default=None, description="of the server's process group, sampled")
    warmup: list[Request]
    requests: list[Request]
    rounds: list[Round] = Field(default_factory=list)
    levels: list[Level]
    native: Native | None = Field(default=None, description="null if there is none; the reasons say why")
    checks: list[Check] = Field(default_factory=list)
    watched: Watched | None = Field(default=None, description="null if nothing was sampled")
    energy: list[Energy] = Field(default_factory=list)
    between_cards: BetweenCards | None = Field(default=None, description="null with less than two GPUs")
    ceiling: Ceiling | None = Field(default=None, description="null if the engine can't tell what it reads")
