"""GGUF files: made by llama.cpp's own converter and quantizer, then looked at."""
