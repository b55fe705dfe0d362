"""Scores of a model on texts and on questions with choices: prepared.py (what is asked, as tokens), packing.py
(as rows of a forward pass), scores.py (from losses to scores), result.py (what is told of them)."""
