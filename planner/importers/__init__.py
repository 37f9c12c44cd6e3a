"""Readers of networks: files of this planner, and those of other programs."""
