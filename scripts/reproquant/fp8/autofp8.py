"""Have the real AutoFP8 write the checkpoint. Runs in an environment with torch and transformers 4.

    python -m reproquant.fp8.autofp8 --autofp8 CHECKOUT --source DIR --target DIR --calibration FILE \
        --form raw --rows 16 --row-tokens 512 --activation-scheme static --facts FILE

The whole model is in memory, on one core. What AutoFP8 writes is left as it is;
what it prints goes to standard error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

from reproquant.files import write_json
from reproquant.fp8 import options
from reproquant.fp8.device import described, prepared
from reproquant.fp8.facts import facts
from reproquant.fp8.source import Source


def quantize(arguments: argparse.Namespace) -> None:
    """Refuse what the native writer would, then let AutoFP8 load, quantize and save."""
    started = time.monotonic()
    device = prepared("cpu")
    source = Source.load(arguments.source)
    rows = options.observed(arguments)
    shutil.rmtree(arguments.target, ignore_errors=True)  # a killed run's
    sys.path.insert(0, str(arguments.autofp8))
    with redirect_stdout(sys.stderr):
        from auto_fp8 import AutoFP8ForCausalLM, BaseQuantizeConfig

        config = BaseQuantizeConfig("fp8", arguments.activation_scheme, ignore_patterns=["re:.*lm_head"])
        model = AutoFP8ForCausalLM.from_pretrained(str(source.directory), config, device_map=None)
        model.quantize(rows)
        model.save_quantized(str(arguments.target))
    made = {
        "backend": "AutoFP8",
        "activation_scales": "autofp8",
        "fused_scales": "separate",
        "activation_scheme": arguments.activation_scheme,
        "working_dtype": str(model.model.dtype).removeprefix("torch."),
        "device": described(device),
    }
    told = facts(source, arguments.target, options.calibration_of(arguments), rows, started)
    write_json(arguments.facts, {**told, **made})


def main() -> None:
    parser = options.parser(__doc__.splitlines()[0])
    parser.add_argument("--autofp8", type=Path, required=True, help="a checkout of AutoFP8")
    options.run(parser, quantize)


if __name__ == "__main__":
    main()
