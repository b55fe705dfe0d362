"""Steps done again on purpose: back (to a checkpoint) → readings (of what was purged) → forget (back before
them)."""
