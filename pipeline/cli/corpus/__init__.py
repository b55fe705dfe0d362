"""Commands that take a data recipe, one module each; summary prints what a run did."""
