"""Bytes to documents: reader → warc, parquet, jsonl (their rows in rows), whole_file → charsets.

Below them: members and unpacked inflate, content is the cursor that all read by.
"""
