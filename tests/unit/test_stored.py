"""The store of results: what it forgets, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproquant.files import sha256_file
from reproquant.provenance.stored import Result, keep, take


def test_a_sound_result_that_can_not_be_brought_stays_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    made = tmp_path / "results/bench/subject.json"
    made.parent.mkdir(parents=True)
    made.write_text("{}")
    name = "bench/subject.json"
    result = Result([name], {name: sha256_file(made)}, {"started": "then", "finished": "later"})
    keep("key", tmp_path / "results", result)
    (tmp_path / "in the way").touch()
    assert take("key", tmp_path / "in the way/kept") is None
    assert take("key", tmp_path / "kept") == result
    assert (tmp_path / "kept" / name).read_text() == "{}"
