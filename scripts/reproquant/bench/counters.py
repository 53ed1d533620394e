"""A server's own counters, out of its /metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reproquant.bench.measurement import ServerTimes
from reproquant.engines.base import Dialect


@dataclass(frozen=True)
class Counters:
    """Where they stand; null where the server has no such counter. Times are sums over requests, in s."""

    cached_tokens: float | None = None
    output_tokens: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    preemptions: float | None = None

    def since(self, before: Counters) -> Counters:
        """The growth from ``before`` to now."""
        return Counters(
            **{
                name: None if value is None or (old := getattr(before, name)) is None else value - old
                for name, value in vars(self).items()
            }
        )

    def times(self, requests: int) -> ServerTimes | None:
        """The mean times of that many requests, if these counters grew by them alone."""
        if self.prefill_s is None or self.decode_s is None:
            return None
        return ServerTimes(
            prefill_ms=1000 * self.prefill_s / requests,
            decode_ms=1000 * self.decode_s / requests,
            mean_of=requests,
        )


def read_counters(text: str, dialect: Dialect) -> Counters:
    """The counters that a dialect names, from a Prometheus text."""
    return Counters(**{name: metric(text, names) for name, names in dialect.counters.items()})


def metric(text: str, names: Sequence[str]) -> float | None:
    """The sum over all labels of the first of ``names`` that a Prometheus text holds; null if none."""
    for name in names:
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((f"{name} ", f"{name}{{"))
        ]
        if values:
            return sum(values)
    return None
