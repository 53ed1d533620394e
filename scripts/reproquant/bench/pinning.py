"""Keep the measuring client off the server's cores, where there are enough of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

ENOUGH = 8


def shares() -> tuple[frozenset[int], frozenset[int]]:
    """The cores for the server and for the client; all of them for both if there are fewer than eight.

    The client gets the last one.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ENOUGH:
        return frozenset(cores), frozenset(cores)
    return frozenset(cores[:-1]), frozenset(cores[-1:])


@contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """This thread, and what it starts, on these cores only while the body runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
