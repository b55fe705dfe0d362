"""What a run records for lineage: facts, the account of an attempt, the record of batches, exposure."""
