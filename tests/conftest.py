"""What several parts of the suite need: the tiny study, finished."""

from __future__ import annotations

import pytest

from checkout import Checkout, copy_checkout


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The tiny study, run to its end once: real llama.cpp, real vLLM, real conversion."""
    checkout = copy_checkout(tmp_path_factory.mktemp("tiny"), "tiny")
    done = checkout.snakemake()
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout
