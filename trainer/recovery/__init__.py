"""What survives and what is skipped: attempts (who may publish), faults (steps that do not count), watchdog (hangs)."""
