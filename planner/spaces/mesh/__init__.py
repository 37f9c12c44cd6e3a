"""Plans over a device mesh: questions and answers, the plan that options spell out, plan files, scaling curves."""
