"""`python -m pipeline` is `sluice`."""

from pipeline.cli.main import console

console()
