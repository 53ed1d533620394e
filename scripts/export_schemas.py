"""Write the schemas of study, measurements and records (`make schemas`); a test holds them equal."""

from pathlib import Path

import typer
from pydantic import BaseModel

from reproquant.bench.measurement import Measurement
from reproquant.bench.telemetry import Telemetry
from reproquant.files import repository, write_json
from reproquant.provenance.record import Record
from reproquant.study import Study

SCHEMAS: dict[str, type[BaseModel]] = {
    "study.schema.json": Study,
    "bench.schema.json": Measurement,
    "telemetry.schema.json": Telemetry,
    "record.schema.json": Record,
}


def main(target: Path = repository() / "workflow/schemas") -> None:
    for name, model in SCHEMAS.items():
        write_json(target / name, model.model_json_schema(by_alias=True))


if __name__ == "__main__":
    typer.run(main)
