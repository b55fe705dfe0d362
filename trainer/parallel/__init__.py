"""The model over a mesh of processes."""
