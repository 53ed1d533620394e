"""The W8A8 checkpoint in AutoFP8's layout: weights and activation scales in float8 e4m3.

``checkpoint`` belongs to the main environment and starts ``quantize`` with the
fp8 environment's Python; ``scales``, ``decoder``, ``calibrate`` and ``quantize``
import torch. ``source`` is the standard library alone and serves both sides.
"""
