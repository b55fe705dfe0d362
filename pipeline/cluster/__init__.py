"""All that starts or uses Ray, in the order to read: session (start or join), tasks (units of work), capacity (what a
cluster can hold), metrics (for Prometheus), job_client (its job server)."""
