"""A run's whole state: state (save, load) → files (storage) → store (which are complete, which may go).
`same_model` says whether a run may take the weights of a checkpoint."""
