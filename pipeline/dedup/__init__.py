"""Deduplication of a whole corpus: corpus is its table of contents; exchange brings rows of one key
together."""
