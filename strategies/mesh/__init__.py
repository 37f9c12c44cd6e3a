"""Search over plans on a device mesh: the space, best-first enumeration with bounds, stages and splits of the best plans' own."""
