"""A page to its main text: page (bounds) → extraction (the two extractors) → extraction_child (isolated)."""
