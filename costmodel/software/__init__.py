"""The software that runs a plan: what a framework adds and takes, stragglers, parameter servers, input, eager updates."""
