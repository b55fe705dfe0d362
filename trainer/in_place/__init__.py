"""Runs that go on when one of their processes dies. survivor: a process, from generation to generation; generation: one
of them, in its states, and the hooks of the run; memory: what a process keeps between two; takeover: the next attempt
begins, and survivors send a dead rank's state to the process that replaces it; pieces: that state as bytes. supervise:
the process that starts all others."""
