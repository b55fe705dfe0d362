"""Whether the machines of a run are sound: probe (known sums on each device), signs (what kernel and GPUs
count), replicas (weights compared), check (the loop's call of all three); and how fast one is: measure (a
recipe's own kernels and steps, for plans)."""
