"""The pii step: step → scrub → finders, phones, numbers, secrets."""
