"""Error bars in the answers: hands plans to `costmodel.uncertainty.intervals` and describes what it says."""
