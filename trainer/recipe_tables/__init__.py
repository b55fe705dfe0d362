"""Large tables of the training recipe: parallelism and mixing. trainer/options.py puts them into the
whole."""
