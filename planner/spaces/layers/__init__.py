"""Questions about plans with a split per layer, and pipelines of layers."""
