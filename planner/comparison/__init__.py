"""Plans side by side: what differs between them, by how much, and why one is faster.

`read` predicts plan files, runs and searches; `items` brings predictions of every space into one form; `differences` works out what differs
and `words` says why; `report` shows it.
"""
