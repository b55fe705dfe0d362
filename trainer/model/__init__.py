"""The model: sizes → transformer, attention; optimizer → muon, owners."""
