"""Plans side by side: what differs between them, by how much, and why one is faster.

`read` predicts plan files, runs and searches; `planner.spaces.items` brings predictions of every space into one form; `differences` works
out what differs; `report` says why and shows it.
"""
