"""Batches on the device ahead of their step: loading builds the data's parts, feed runs them."""
