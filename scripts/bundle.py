"""Pack what a machine without network lacks for a study, in parts that can be carried there."""

from pathlib import Path

from reproquant import program
from reproquant.airgap.pack import MB, pack
from reproquant.airgap.target import Target


def main(target: Path, folder: Path) -> None:
    manifest = pack(Target.load(target), folder, folder / "pack.log")
    for part in manifest.parts:
        print(f"{part.bytes / MB:8.1f} MB  {folder / 'parts' / part.name}")
    print(f"{sum(file.bytes for file in manifest.files) / MB:8.1f} MB  in {len(manifest.files)} files")
    print(f"carry {folder / 'parts'} there with the checkout, and run 'make unbundle'")


if __name__ == "__main__":
    program.run(main)
