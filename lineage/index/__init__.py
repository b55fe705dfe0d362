"""What a finished output publishes of itself: blocks and their digests, checksums, and index.json over them."""
