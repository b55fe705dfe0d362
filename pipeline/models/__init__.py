"""Models of model steps, on whatever device their actor has: what a device is called; the transformers
encoder."""
