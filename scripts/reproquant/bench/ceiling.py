"""The ceiling of decoding: what the memory's bandwidth allows, and the part of it that was reached."""

from __future__ import annotations

from collections.abc import Sequence

from reproquant.bench.measurement import Bandwidth, Ceiling, Level
from reproquant.engines.streamed import Streamed
from reproquant.study import Benchmark


def ceiling(
    streamed: Streamed,
    artifact_bytes: int,
    found: Sequence[Level],
    benchmark: Benchmark,
    study_gb_per_s: float | None,
    measured: Bandwidth | None,
    why_not: str | None,
) -> tuple[Ceiling, str | None]:
    """The ceiling of one request's decode, and a sentence if a decode lies above it.

    The larger bandwidth counts: the data sheet's is never reached, and a
    measured one may be too low. A decode above it by more than
    ``above_ceiling_percent`` is impossible, unless the cache could hold what it
    seems to have read: what fits there need not be read again.
    """
    context = benchmark.prompt_tokens + benchmark.output_tokens // 2
    kv = round(streamed.kv_per_token * context)
    total = streamed.weights + kv
    bandwidth = max(study_gb_per_s or 0.0, measured.gb_per_s if measured else 0.0) * 1e9
    fastest = streamed.memories * bandwidth / total if bandwidth else None
    single = next((level for level in found if level.concurrency == 1), None)
    decode = single.decode_tok_per_s.median if single else None
    share = decode / fastest if decode and fastest else None
    reason = note = None
    if fastest is None:
        note = why_not
    elif share is None:
        note = "one request alone wasn't measured; several at once share what they read"
    elif 100 * (share - 1) > benchmark.limits.above_ceiling_percent:
        allowed = 1 + benchmark.limits.above_ceiling_percent / 100
        cached = streamed.memories * (measured.cache_bytes or 0 if measured else 0)
        left = total - cached
        if left > 0 and share * left / total > allowed:
            reason = (
                f"It decoded {decode:.4g} tok/s where memory allows {fastest:.4g}, with {total / 1e9:.4g} GB "
                f"a token at {streamed.memories} x {bandwidth / 1e9:.4g} GB/s. That is impossible."
            )
        else:
            note = f"above 100 % because {cached / 1e6:.0f} MB of cache can hold much of what is read"
    return (
        Ceiling(
            weight_bytes=streamed.weights,
            unread_bytes=streamed.unread,
            kv_bytes=kv,
            context_tokens=context,
            streamed_bytes=total,
            memories=streamed.memories,
            study_gb_per_s=study_gb_per_s,
            measured=measured,
            decode_tok_per_s=fastest,
            simple_tok_per_s=bandwidth / artifact_bytes if bandwidth else None,
            share_percent=100 * share if share else None,
            note=note,
        ),
        reason,
    )
