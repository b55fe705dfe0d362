"""A command as a Ray job: submission (what is shipped), cluster_jobs (start, follow, stop), settings (carries keys)."""
