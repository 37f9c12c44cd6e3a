"""Plans with a split per layer, and pipelines of layers: questions and answers, plan files, scaling curves."""
