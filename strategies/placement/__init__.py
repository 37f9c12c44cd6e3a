"""Operator graphs on devices: throughput and latency, contiguous or not."""
