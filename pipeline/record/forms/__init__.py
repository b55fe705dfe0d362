"""The forms that a record can have: `form` is what one is made of, then a module each."""
