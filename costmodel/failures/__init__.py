"""What failures do to a training of weeks: interruptions, checkpoints, restarts, spares, and when it is done."""
