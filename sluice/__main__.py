"""`python -m sluice` is the command `sluice`."""

from pipeline.cli.main import console

console()
