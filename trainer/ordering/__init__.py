"""The parts of the order: permutation (a keyed bijection) → geometry (blocks and sequences) → mixture
(sources)."""
