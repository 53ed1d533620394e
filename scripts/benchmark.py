"""Measure one subject over HTTP."""

import shutil
from pathlib import Path

from reproquant import program
from reproquant.bench.protocol import measure
from reproquant.engines.choice import for_subject
from reproquant.errors import ToolError
from reproquant.files import write_json
from reproquant.stage import stage


def main(
    study: Path,
    recipe: str,
    log: Path,
    subject: str,
    weights: Path,
    engine: Path,
    output: Path,
    telemetry: Path,
    proof: Path | None = None,
) -> None:
    inputs = [path for path in (weights, engine, proof) if path]
    with stage("benchmark", study, recipe, log, inputs, output, subject=subject) as run:
        chosen = run.study.subject(subject)
        server = for_subject(run.study, chosen, weights, engine, run.log)
        samples = run.scratch(telemetry)
        sheet = run.study.machine.bandwidth_gb_per_s
        measurement = measure(server, chosen, run.study.benchmark, run.log, samples, sheet)
        data = measurement.model_dump(mode="json")
        if measurement.status == "failed":
            kept = output.with_suffix(".failed.json")
            write_json(kept, data)
            shutil.copyfile(samples, output.with_suffix(".failed.telemetry.json"))
            raise ToolError(
                f"subject {subject}",
                "\n".join([*measurement.reasons, measurement.evidence or ""]),
                f"what was measured until then stands in {kept}; mend the cause and run again",
            )
        run.worth_keeping = measurement.status != "rejected"
        write_json(run.scratch(output), data)


if __name__ == "__main__":
    program.run(main)
