"""One package per space of plans: what its answers say to people, and what its plan files hold."""
