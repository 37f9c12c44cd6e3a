"""Graphs of ten thousand operators and more: cheap cuts, coarse graphs, and bounds that need no enumeration."""
