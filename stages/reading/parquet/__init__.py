"""Parquet files: documents → page_meter → thrift."""
