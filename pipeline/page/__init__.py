"""The lineage page on loopback: serve is its server, views what it shows."""
