"""The time of one layer on one device: roofline, kernel efficiency, and the interface that a cost preset implements."""
