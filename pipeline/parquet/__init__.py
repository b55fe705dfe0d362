"""Parquet files with bytes that repeat, written in bounded memory."""
