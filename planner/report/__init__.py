"""Renderings of results: text, rich, Markdown, CSV, YAML and JSON."""
