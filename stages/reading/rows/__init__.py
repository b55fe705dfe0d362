"""One row of a JSONL or Parquet file to its documents: row → dates."""
