"""Training runs, layouts, plans and ablations of models small enough for a test."""
