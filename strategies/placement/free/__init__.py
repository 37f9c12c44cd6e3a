"""Placement for throughput without contiguity: what a device computes need not be a stage."""
