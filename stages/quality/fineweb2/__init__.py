"""FineWeb-2's thresholds and stop words by language: configurations.py reads languages.jsonl."""
