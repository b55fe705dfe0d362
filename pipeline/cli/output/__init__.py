"""Commands that take a finished output, one module each."""
