"""Parquet files: documents → values; page_damage, page_meter → thrift."""
