"""Commands that take a training recipe: train, plan, mix. Plan prints with layouts and bounds."""
