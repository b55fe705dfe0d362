"""One module a format; registry.py names them all and says what each needs."""
