"""The processes of a run: runtime (rank, device), placement, following (a run elsewhere)."""
