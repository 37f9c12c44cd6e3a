"""Plans over a device mesh: the same degrees for every block of a network (tp, cp, ep, pp, dp), costed by the thousand."""
