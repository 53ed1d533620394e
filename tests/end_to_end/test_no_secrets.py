"""Nothing that a study leaves behind tells a token, a user, a home folder or a host."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkout import Checkout, store_without_results
from reproquant.files import store

TOKENS = {
    "HF_TOKEN": "hf_PlantedTokenOfTheTest0123456789",
    "HUGGING_FACE_HUB_TOKEN": "hf_AnotherPlantedToken0123456789",
    "GITHUB_TOKEN": "ghp_PlantedTokenOfTheTest0123456789",
    "AWS_SECRET_ACCESS_KEY": "PlantedSecretOfTheTest/0123456789",
    "https_proxy_password": "PlantedPasswordOfTheTest",
}
USER = "planted-user-name"
FORCED = ("bench/llama-q4km.json", "gguf/f16.inspect.json")


@pytest.fixture(scope="module")
def planted(tiny: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """The finished study, stages of it run again by a user with secrets in the environment."""
    home = tmp_path_factory.mktemp("home") / USER
    shutil.copytree(tiny.root, home / "checkout", symlinks=True, ignore=shutil.ignore_patterns("store"))
    # A store without results: those of the first run would answer in place of the stages.
    checkout = Checkout(home / "checkout", "tiny", store_without_results(home / "store"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**TOKENS, "HOME": str(home), "USER": USER, "LOGNAME": USER}.items():
            patch.setenv(name, value)
        done = checkout.snakemake("--forcerun", *(f"results/tiny/{name}" for name in FORCED))
        assert done.returncode == 0, done.stdout + done.stderr
    yield checkout


def left_behind(checkout: Checkout, *skipped: str) -> Iterator[Path]:
    for path in sorted(checkout.results.rglob("*")):
        if path.is_file() and path.relative_to(checkout.results).parts[0] not in skipped:
            yield path


def test_no_token_is_in_any_file_that_a_run_leaves(planted: Checkout) -> None:
    for path in left_behind(planted):
        content = path.read_bytes()
        for name, token in TOKENS.items():
            assert token.encode() not in content, f"{name} stands in {path}"


def test_no_user_home_host_or_private_folder_is_in_any_result(planted: Checkout) -> None:
    private = {USER, str(planted.root.parent), str(planted.root), str(planted.store), str(store())}
    if len(platform.node()) > 8:
        private.add(platform.node())
    for path in left_behind(planted, "logs", "benchmarks"):
        content = path.read_bytes()
        for text in private:
            assert text.encode() not in content, f"'{text}' stands in {path}"
