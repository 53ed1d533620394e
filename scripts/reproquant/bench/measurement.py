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
    prompt_tokens: int | None = Field(description="from usage")
    completion_tokens: int | None = Field(description="from usage")
    cached_tokens: int | None = Field(description="prompt tokens the server says it took from a cache")
    error: str | None = None


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
    prefill_tok_per_s: Summary = Field(description="per round: median of prompt_tokens / TTFT")
    decode_tok_per_s: Summary = Field(
        description="per round: median of (completion_tokens - 1) / (last - first)"
    )
    output_tok_per_s: Summary = Field(description="per round: all completion tokens / (last end - barrier)")


class Measurement(Part):
    """One subject, measured or refused."""

    subject: str
    engine: Literal["llama_cpp", "vllm"]
    artifact: str
    status: Status
    reasons: list[str] = Field(description="why the status is not ok; a sentence each")
    evidence: str | None = Field(default=None, description="the engine's own words for a refusal or failure")
    expected: str | None = Field(default=None, description="the status that the study expected, if any")
    hardware: Literal["cpu", "gpu"]
    machine: dict[str, Any] = Field(
        default_factory=dict,
        description="host, GPUs and the share of all cores that was busy before the start",
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
    levels: list[Level]
