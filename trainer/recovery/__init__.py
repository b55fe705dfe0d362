"""Failures: attempts (who may publish), faults (steps that do not count), watchdog (hangs)."""
