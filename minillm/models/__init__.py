"""Architectures as data, the decoder written once against the operators, tokenizers, chat templates."""
