"""What tests share, by kind: inputs, outputs, stores, processes, steps, training. checkout is the path of
this copy."""
