"""The model: sizes → description → transformer, attention, experts."""
