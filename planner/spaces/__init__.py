"""Answers: the path that every question takes, and a package per space of plans with what its answers say and its plan files hold."""
