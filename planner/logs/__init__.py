"""`planner check`: logs of training runs, what they measured, and what was predicted of them."""
