"""Fits the constants of the cost model to measurements, and reads and writes the files that hold them."""
