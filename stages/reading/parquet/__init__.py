"""Parquet files: documents → page_damage, page_meter → thrift."""
