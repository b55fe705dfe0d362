"""Near-duplicates as functions: shingles → minhash → bands → candidates → components → decide."""
