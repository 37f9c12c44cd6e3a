"""Finds out what machine this is, and writes it down as a cluster file: every value with its source, unknowns marked."""
