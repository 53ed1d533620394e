"""Every fault of a download ends in the right files or in one clear error; no wrong byte is accepted."""

from __future__ import annotations

import traceback

import pytest

from fake_hub import SIGNATURE
from hub_faults import FAULTS, TOKEN, Fault, Scene, rotten, table
from reproquant.errors import DownloadError
from reproquant.files import repository

OVERCOME = [fault for fault in FAULTS if not fault.error]
TOLD = [fault for fault in FAULTS if fault.error]


def name(fault: Fault) -> str:
    return fault.what


@pytest.mark.parametrize("fault", OVERCOME, ids=name)
def test_a_fault_that_passes_ends_in_the_right_files(scene: Scene, fault: Fault) -> None:
    check = fault.arrange(scene)
    scene.download()
    assert {path.name: path.read_bytes() for path in scene.model.iterdir()} == scene.wanted
    assert fault.says in "\n".join(scene.lines)
    if check:
        check()
    assert not rotten(scene.cache)
    assert not list(scene.cache.rglob("*.incomplete"))
    assert_no_secret(scene, "\n".join(scene.lines))


@pytest.mark.parametrize("fault", TOLD, ids=name)
def test_a_fault_that_stays_ends_in_one_error_that_says_what_to_do(scene: Scene, fault: Fault) -> None:
    check = fault.arrange(scene)
    with pytest.raises(DownloadError) as caught:
        scene.download()
    assert fault.says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3
    assert caught.value.remedy
    assert not scene.model.exists()
    if check:
        check()
    assert not rotten(scene.cache)
    assert_no_secret(scene, "\n".join([*scene.lines, *traceback.format_exception(caught.value)]))


def assert_no_secret(scene: Scene, text: str) -> None:
    """Neither token nor signature in what was said, or in any file that was written."""
    for secret in (TOKEN, SIGNATURE):
        assert secret not in text
        for path in scene.root.rglob("*"):
            assert not (path.is_file() and secret.encode() in path.read_bytes()), path


def test_there_are_at_least_25_faults_and_each_is_another_one() -> None:
    assert len({fault.what for fault in FAULTS}) == len({fault.arrange for fault in FAULTS}) == len(FAULTS)
    assert len(FAULTS) >= 25


def test_the_table_in_the_docs_is_the_list_of_faults() -> None:
    text = (repository() / "docs/hub.md").read_text(encoding="utf-8")
    assert table() in text, f"docs/hub.md has to hold this table:\n{table()}"
