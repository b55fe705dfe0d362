"""The block cache of a node: reader → folder (files and eviction), schedule (next use), fetch (range
reads)."""
