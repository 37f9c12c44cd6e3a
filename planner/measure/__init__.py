"""Times kernels and collectives on the machine it runs on, for ``planner validate`` and ``planner calibrate``. Needs PyTorch."""
