"""Whether the machines of a run are sound: probe (known sums on each device), signs (what kernel and GPUs
count), replicas (weights compared), check (the loop's call of all three)."""
