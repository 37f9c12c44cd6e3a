"""Pipelines over clusters with several kinds of devices: plans, links between groups, and what they cost."""
