"""Readers of other programs' network files and launch files."""
