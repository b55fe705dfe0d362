"""The model: config (read first) → transformer, attention, experts."""
