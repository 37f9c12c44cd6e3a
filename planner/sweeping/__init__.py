"""A grid of searches over clusters, numbers of GPUs, batches and lengths: each answered once, in any number of processes."""
