"""The quality step: step → rules (gopher_quality, gopher_repetition, c4, fineweb) → page, words (measures)."""
