"""The processes of a run: runtime (rank, device), allocator, placement, following (a run elsewhere), asked_stacks
(SIGUSR2), result (how it ended)."""
