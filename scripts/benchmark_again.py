"""Measure the baseline once more, after all subjects."""

from pathlib import Path

from reproquant import program
from reproquant.bench.again import measure_again
from reproquant.engines.choice import for_subject
from reproquant.files import write_json
from reproquant.stage import stage


def main(
    study: Path,
    recipe: str,
    log: Path,
    subject: str,
    weights: Path,
    engine: Path,
    subjects: list[Path],
    output: Path,
    proof: Path | None = None,
) -> None:
    inputs = [*(path for path in (weights, engine, proof) if path), *subjects]
    with stage("benchmark_again", study, recipe, log, inputs, output, subject=subject) as run:
        chosen = run.study.subject(subject)
        server = for_subject(run.study, chosen, weights, engine, run.log)
        sheet = run.study.machine.bandwidth_gb_per_s
        measurement = measure_again(server, chosen, run.study.benchmark, run.log, sheet)
        run.worth_keeping = measurement.status not in ("failed", "rejected")
        write_json(run.scratch(output), measurement.model_dump(mode="json"))


if __name__ == "__main__":
    program.run(main)
