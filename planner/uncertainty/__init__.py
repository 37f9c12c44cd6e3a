"""Error bars in the answers: hands plans to `costmodel.uncertainty` and describes what it says."""
