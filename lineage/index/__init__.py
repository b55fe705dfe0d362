"""What a finished output publishes: blocks and their digests, checksums, and index.json over them."""
