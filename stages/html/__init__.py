"""A page to its main text: page (within bounds) → extraction (two extractors) → extraction_child (in a
process)."""
