"""All that starts or calls Ray: engine (tasks), capacity (what a cluster can hold), metrics (for Prometheus)."""
