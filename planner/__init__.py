"""An optimizing planner for distributed deep learning: command line, files and reports."""

__version__ = "0.1.0"
