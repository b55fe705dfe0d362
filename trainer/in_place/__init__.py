"""Runs that go on when one of their processes dies: survivor (a process, from generation to generation), supervise
(the process that starts all others)."""
