"""What a model is, read from a config.json and written back: family_table → families; description; sizes (by name). No
torch here."""
