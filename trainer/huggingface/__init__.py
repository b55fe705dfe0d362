"""Weights and checkpoints as Hugging Face folders."""
