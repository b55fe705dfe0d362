"""Questions about a recipe or an output: explain, scan, trace, tune, purging, verification, evaluation.

hooks gives lineage the functions that it cannot import.
"""
