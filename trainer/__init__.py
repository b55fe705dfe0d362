"""The training side, under Ray Train or plain torchrun.

Read downward: launch → loop → step → reporter; order is what everything reads by.
"""
