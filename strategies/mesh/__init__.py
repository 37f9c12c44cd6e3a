"""Search over plans on a device mesh: legality rules, the space, best-first enumeration with bounds."""
