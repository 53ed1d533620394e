"""A copy of the project, and Snakemake on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from reproquant.files import repository, store

TOP_LEVEL = ("Snakefile", "config.yaml", "workflow", "scripts", "envs", "profiles")


@dataclass(frozen=True)
class Checkout:
    """A copy of the project in a folder of its own, free to be edited."""

    root: Path
    study: str
    store: Path

    def command(self, *words: object) -> list[str]:
        snakemake = Path(sys.executable).with_name("snakemake")
        config = f"workflow/studies/{self.study}.yaml"
        return [str(word) for word in (snakemake, "--cores", "all", *words, "--configfile", config)]

    @property
    def environment(self) -> dict[str, str]:
        """The copy's library before the installed one, and a store without results of earlier runs."""
        return {
            **os.environ,
            "PYTHONPATH": str(self.root / "scripts"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "REPROQUANT_STORE": str(self.store),
        }

    def snakemake(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run Snakemake on the copy's study, as a user would in its folder."""
        return subprocess.run(
            self.command(*words),
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def planned(self) -> dict[str, int]:
        """How many jobs of each rule a dry run would start; a run with nothing to do gives none."""
        done = self.snakemake("-n")
        assert done.returncode == 0, done.stderr
        if "Nothing to be done" in done.stdout + done.stderr:
            return {}
        table = done.stdout.rsplit("Job stats:", 1)[1].split("\ntotal", 1)[0]
        return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}

    @property
    def results(self) -> Path:
        return self.root / "results" / self.study


def copy_checkout(target: Path, study: str) -> Checkout:
    target.mkdir(exist_ok=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in TOP_LEVEL:
        source = repository() / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy2(source, target / name)
    return Checkout(target, study, store_without_results(target / "store"))


def store_without_results(target: Path) -> Path:
    """A store that shares environments, sources, builds and downloads with the real one, and no results."""
    target.mkdir()
    for name in ("environments", "sources", "builds", "downloads"):
        (store() / name).mkdir(parents=True, exist_ok=True)
        (target / name).symlink_to(store() / name)
    return target
