"""Questions about clusters of several kinds of devices: options, orchestration, plan files and reports."""
