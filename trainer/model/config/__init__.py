"""What a model is, read from a config.json and written back: families.toml → family_table → families; description;
sizes (by name). No torch here."""
