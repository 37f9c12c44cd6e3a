"""The physics: numbers in, seconds and bytes out. Needs numpy only."""
