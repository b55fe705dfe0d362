"""The processes of a run: runtime (rank, device), placement, address (where Ray listens),
following (a run elsewhere).
"""
