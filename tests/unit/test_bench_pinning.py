"""The client's own core."""

from __future__ import annotations

import os

import pytest

from reproquant.bench.pinning import pinned, shares


def test_on_many_cores_the_client_has_the_last_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4, 12)))
    assert shares() == (frozenset(range(4, 11)), frozenset([11]))


def test_on_few_cores_they_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert shares() == (frozenset([0, 1]), frozenset([0, 1]))


def test_a_pinned_thread_gets_its_cores_back() -> None:
    before = os.sched_getaffinity(0)
    one = frozenset([min(before)])
    with pytest.raises(KeyError), pinned(one):
        assert os.sched_getaffinity(0) == one
        raise KeyError
    assert os.sched_getaffinity(0) == before
