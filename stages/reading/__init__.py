"""Bytes to documents: reader → warc, jsonl, parquet → record, row → body, charset (labels, detector)."""
