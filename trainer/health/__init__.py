"""Whether the machines of a run are sound: probe (known sums on each device), signs (alerts on their
nodes), replicas (weights compared), check (the loop's call of all three)."""
