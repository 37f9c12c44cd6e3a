"""Search over plans with a split per layer: space, bounds, and exact solvers for one group of workers and for pipelines."""
