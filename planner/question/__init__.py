"""The question: from options to a network, a cluster and the space of plans that it is about."""
