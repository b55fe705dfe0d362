"""Top-level domains by which DCLM finds URLs in texts."""
