"""The phases of `sluice run`: phase.py runs the units of each and results.py holds what they come to.

In order: steps, read, bad_records; compare, groups; tokenize; shard; join (with document_rows), small_tables, record;
publish.
"""
