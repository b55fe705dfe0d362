"""A run's whole state: state (save, load) → files (storage) → store (which are complete, which may go)."""
