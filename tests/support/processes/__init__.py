"""Processes of their own: clusters, a browser, ranks, and commands that are killed on the way."""
