"""Large tables of the training recipe: parallelism, failures and mixing. trainer/options.py puts them into the
whole."""
