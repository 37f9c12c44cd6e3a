"""Types that all of the planner shares: the question, the answer, errors."""
