"""The quality step: step → rules (gopher_quality, gopher_repetition, c4, fineweb) → text_view, words (measures)."""
