"""Reproducible answers to: which engine, which quantization, on the GPU you have?"""

__version__ = "0.1.0"
