"""One row of a JSONL or Parquet file to its documents: row → elements, dates → other_fields."""
