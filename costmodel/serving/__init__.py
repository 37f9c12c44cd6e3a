"""Inference of transformers that generate text: prompts are read (prefill), then every pass makes one token per sequence (decode)."""
