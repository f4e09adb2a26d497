"""Readers of weight files: GGUF and safetensors, memory-mapped and strict."""
