"""A small finished OUT: records → rows → output; hooks are what its purge and verify take."""
