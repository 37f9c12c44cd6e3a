"""Search over plans for clusters with several device groups."""
