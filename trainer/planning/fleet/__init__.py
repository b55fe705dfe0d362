"""A run at size, without its processes: reliability (failures, restarts, spares), storage (what it must
bear)."""
