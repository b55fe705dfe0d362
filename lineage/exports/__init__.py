"""Copies of the corpus in other formats, as facts: records.py is what the store says of them, manifest.py
what lies in the folder of each."""
