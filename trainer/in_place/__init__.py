"""Runs that go on when one of their processes dies. survivor: a process, from generation to generation; generation: one
of them, in its states, and the hooks of the run; memory: what a process keeps between two; takeover and pieces: how the
next attempt begins from it. supervise: the process that starts all others."""
