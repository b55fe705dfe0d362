"""One module a command of `sluice`; main finds it."""
