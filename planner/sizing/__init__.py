"""How many of which GPUs finish a training by a deadline and within a budget."""
