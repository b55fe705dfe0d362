"""Checking an output: output → files, shards, steps, documents, duplicates; problems is what they return."""
