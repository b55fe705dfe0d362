"""Parquet files: documents → values; page_meter → thrift."""
