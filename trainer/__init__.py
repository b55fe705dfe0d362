"""Training from the shards, under Ray Train or torchrun.

Read: loop → step → reporter, then order; launch starts the loop on Ray Train.
"""
