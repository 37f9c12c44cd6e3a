"""Searching the plans that serve a network."""
