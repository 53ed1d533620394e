"""A vLLM plugin: FP8 checkpoints (W8A8, AutoFP8's layout) served without FP8 units, emulated and slow.

    PYTHONPATH=workflow/plugins/fp8_emulated VLLM_PLUGINS=reproquant_fp8_emulated vllm serve CHECKPOINT

``arithmetic`` says what is computed. Where vLLM has loaded this, every checkpoint with ``quant_method: fp8``
goes through it, on any device; without it nothing is changed. What it measures is the speed of the
emulation and not that of FP8.
"""

from __future__ import annotations


def register() -> None:
    """Called by vLLM in each of its processes, perhaps twice (entry point ``vllm.general_plugins``)."""
    from vllm.model_executor.layers import linear, quantization

    from reproquant_fp8_emulated.method import NAME, EmulatedFp8Config, EmulatedFp8LinearMethod

    if NAME not in quantization.QUANTIZATION_METHODS:
        quantization.register_quantization_config(NAME)(EmulatedFp8Config)
        linear.WEIGHT_LOADER_V2_SUPPORTED.append(EmulatedFp8LinearMethod.__name__)
