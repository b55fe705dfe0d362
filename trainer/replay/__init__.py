"""Steps done again on purpose: back (to a checkpoint), readings (what a run read of a purge), forget (back before it)."""
