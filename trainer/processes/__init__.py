"""The processes of a run: runtime (rank, device), allocator, placement, following (a run elsewhere), result (how it
ended)."""
