"""What can be chosen, and choosing it: the plan space and the exact searches over it."""
