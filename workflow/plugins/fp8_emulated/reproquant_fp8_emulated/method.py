"""The quantization method as vLLM sees it: which checkpoints it takes, what a Linear holds and computes.

Keeps to what vLLM 0.9.2 (V0 engine) and 0.32 have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
from vllm.model_executor.parameter import ModelWeightParameter, PerTensorScaleParameter

from reproquant_fp8_emulated.arithmetic import linear, merged

NAME = "reproquant-fp8-emulated"
ANY_GPU = 60
"""vLLM asks for a minimum capability, and nothing here needs one; 6.0 is the oldest that it runs on."""


class EmulatedFp8Config(QuantizationConfig):
    """What a checkpoint's ``quantization_config`` says."""

    def __init__(self, static: bool, ignored: list[str]) -> None:
        super().__init__()
        self.static = static
        self.ignored = ignored

    @classmethod
    def get_name(cls) -> str:
        return NAME

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return ANY_GPU

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmulatedFp8Config:
        """Raises ValueError for scales by block: only one a tensor is emulated."""
        if config.get("weight_block_size"):
            raise ValueError(f"{NAME} emulates FP8 with one weight scale a tensor; these are scales by block")
        return cls(config["activation_scheme"] == "static", config.get("ignored_layers") or [])

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: object = None
    ) -> str | None:
        """Take every FP8 checkpoint: whoever loads this plugin wants that.

        vLLM 0.9.2 doesn't let ``--quantization`` name a method that a plugin brings.
        """
        return NAME if hf_quant_cfg.get("quant_method") == "fp8" else None

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if not isinstance(layer, LinearBase):
            return None
        if is_layer_skipped(prefix, self.ignored, self.packed_modules_mapping):
            return UnquantizedLinearMethod()
        return EmulatedFp8LinearMethod(self.static)


class EmulatedFp8LinearMethod(LinearMethodBase):
    """A Linear, or several that vLLM has put below each other (q, k, v; gate, up)."""

    def __init__(self, static: bool) -> None:
        self.static = static

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        *,
        weight_loader: Callable[..., None],
        **others: object,
    ) -> None:
        """Room for what the checkpoint holds: codes, and a scale for each part of the layer."""
        layer.logical_widths = output_partition_sizes
        codes = torch.empty(sum(output_partition_sizes), input_size_per_partition, dtype=torch.float8_e4m3fn)
        layer.register_parameter(
            "weight", ModelWeightParameter(data=codes, input_dim=1, output_dim=0, weight_loader=weight_loader)
        )
        for name in ("weight_scale", "input_scale") if self.static else ("weight_scale",):
            scales = torch.full((len(output_partition_sizes),), torch.nan)
            layer.register_parameter(name, PerTensorScaleParameter(data=scales, weight_loader=weight_loader))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Give a layer's parts one weight scale and one input scale, as vLLM does for its FP8 kernels."""
        codes, scale = merged(layer.weight.data, layer.weight_scale.data, layer.logical_widths)
        layer.weight = nn.Parameter(codes, requires_grad=False)
        layer.weight_scale = nn.Parameter(scale, requires_grad=False)
        if self.static:
            layer.input_scale = nn.Parameter(layer.input_scale.data.max(), requires_grad=False)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        input_scale = layer.input_scale if self.static else None
        return linear(x, layer.weight, layer.weight_scale, input_scale, bias)
