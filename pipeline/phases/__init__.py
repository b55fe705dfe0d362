"""One module a phase of `sluice run`, in order: read, tokenize, join, record, publish; phase runs the units of each."""
