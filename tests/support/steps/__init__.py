"""Steps, units and models of a user's own, found by name, by workers too."""
