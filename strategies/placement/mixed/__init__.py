"""Placement on accelerators of several kinds, each with times, memory and links of its own."""
