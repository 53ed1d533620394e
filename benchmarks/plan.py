"""What planning costs: CPU seconds of a dry run of a study with many subjects, and of one recipe.

    python benchmarks/plan.py [--subjects 300]

Prints them beside those of `snakemake --version`, measured in the same run.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import typer
import yaml

from reproquant.files import repository
from reproquant.recipe import recipe_digest
from reproquant.study import Study

SNAKEMAKE = Path(sys.executable).with_name("snakemake")


def main(subjects: int = 300) -> None:
    many = [
        {"name": f"s{number}", "engine": engine, "artifact": artifact, "gpus": 1}
        for number in range(subjects)
        for engine, artifact in [(("llama_cpp", "Q4_K_M"), ("vllm", "checkpoint"))[number % 2]]
    ]
    config = yaml.safe_load((repository() / "config.yaml").read_text())
    config["subjects"], config["benchmark"]["baseline"] = many, "s0"
    study = Study.resolve(config)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        bare = cpu_seconds("--version")
        plan = cpu_seconds("-n", "--cores", "16", "--configfile", file.name)
    print(f"snakemake --version: {bare:.2f} CPU s; plan of {subjects} subjects: {plan:.2f} CPU s")
    print(f"one recipe: {1000 * recipe_seconds(study):.2f} ms")


def cpu_seconds(*words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([SNAKEMAKE, *words], cwd=repository(), capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def recipe_seconds(study: Study) -> float:
    """CPU seconds of a recipe, when the code's digests are known."""
    names = [subject.name for subject in study.subjects]
    for name in names[:2]:
        recipe_digest("benchmark", study, subject=name)
    begin = time.process_time()
    for name in names:
        recipe_digest("benchmark", study, subject=name)
    return (time.process_time() - begin) / len(names)


if __name__ == "__main__":
    typer.run(main)
