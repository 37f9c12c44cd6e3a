"""How sure a prediction is: the constants that may be off, error bars, calibrations, and the chance that a plan is the best."""
