"""What the recorders of a run say together: reading (files) → collectives, stacks, own_times → diagnose;
timeline."""
