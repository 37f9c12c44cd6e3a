"""Hugging Face's ``config.json``: the sizes of a transformer, turned into a network file."""
