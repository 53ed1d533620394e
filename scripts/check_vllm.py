"""Compare a vLLM's own source with the compatibility table: a wheel, or the site-packages folder of one.

Exit code 1, with a sentence for each, if they contradict each other.
"""

from pathlib import Path

from reproquant import program
from reproquant.engines.vllm_source import contradictions, read


def main(source: Path) -> None:
    found = read(source)
    for method, minimum in sorted(found.minimums.items()):
        print(f"vLLM {found.version}: {method} from compute capability {minimum / 10}")
    for words in found.refusals:
        print(f"vLLM {found.version} refuses with: {words}")
    wrong = contradictions(found)
    print(*wrong, sep="\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    program.run(main)
