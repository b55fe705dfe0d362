"""The same work as a Ray job: submission says what is shipped, cluster_jobs starts, follows and stops it."""
