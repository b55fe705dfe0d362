"""What a run records for lineage: account (segments of steps) → facts → the store; batches, what was really fed;
exposure, the order inverted for trace.
"""
