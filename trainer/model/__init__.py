"""The model: sizes → transformer, attention; optimizer."""
