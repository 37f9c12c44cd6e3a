"""Answers as one HTML file each."""
