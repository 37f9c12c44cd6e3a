"""The cost model against tables of measurements: read the rows, predict each, say how wrong the predictions are."""
