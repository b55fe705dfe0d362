"""What a run tells lineage: facts, the account of an attempt, the record of batches, exposure."""
