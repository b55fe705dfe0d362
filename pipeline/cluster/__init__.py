"""All that starts or speaks Ray, and what a cluster can hold."""
