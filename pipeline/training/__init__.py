"""A training run and its certificate, as the commands and the library start them: train.py, then certify.py; opened.py
opens a model and its tokenizer, profiled.py reads a run's traces beside its plan."""
