"""A command as a Ray job: submission (what is shipped), cluster_jobs (start, follow, stop), live_log (a log
on a terminal), settings (carries keys)."""
