"""The phases of `sluice run`: phase.py runs the units of each; pipeline.results holds what they come to.

In order: steps, read; groups; tokenize; shard; join (with document_rows), small_tables, record;
publish.
"""
