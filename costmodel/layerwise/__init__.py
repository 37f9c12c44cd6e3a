"""Plans with a split per layer, and pipelines of layers: what they cost."""
