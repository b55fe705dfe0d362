"""Disks and servers that are small, fail or lie."""
