"""Contiguous pipeline stages with replicas and micro-batches, chosen exactly by dynamic programming."""
