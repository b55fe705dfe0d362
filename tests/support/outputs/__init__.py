"""Finished outputs of several sizes, runs that make them, and ways to look into them."""
