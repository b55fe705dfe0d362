"""The quality step: step → rule_sets/ (tables of rules) → text_view, words (what they measure)."""
