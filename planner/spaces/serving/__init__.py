"""Questions about serving a transformer (--mode inference): options, orchestration and reports."""
