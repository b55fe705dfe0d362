"""Shards as batches: corpus → blocks → dataset; figures counts what reading costs; cache/ is the NVMe block
cache."""
