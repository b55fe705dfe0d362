"""Repeats inside documents over a whole corpus: flow is its table of contents; apply writes the texts without them."""
