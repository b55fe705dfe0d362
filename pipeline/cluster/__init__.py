"""All that starts or uses Ray, in the order to read: session (start or join), dataset (units of work as Ray
Data Datasets), tasks (what a unit reserves), capacity (what a cluster can hold), metrics (for Prometheus),
job_client (its job server)."""
