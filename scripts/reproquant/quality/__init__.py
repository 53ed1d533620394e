"""What a quantization costs: perplexity, divergence from the original, how often the likeliest token stays.

One definition for all formats, llama-perplexity's: chunks of 512 tokens that
follow each other, scored at positions 256 to 510. ``measure`` belongs to the
main environment; ``evaluate`` is run with the fp8 environment's Python, and it,
``logits`` and ``weights`` import torch. ``result`` and ``llama_perplexity`` don't.
"""
