"""Evaluation of a model on texts and on questions with choices: formats.py (rows of the common benchmarks) →
prepare.py (as tokens) → evaluate.py (a checkpoint or a folder), read_before.py (what of it the model had read)."""
