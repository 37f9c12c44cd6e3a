"""Placement for latency: one sample as soon as possible, a bounded number of subgraphs on each accelerator."""
