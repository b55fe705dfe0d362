"""Training from the shards, under Ray Train or torchrun.

Read: loop → step → reporter, then order; launch starts the loop on Ray Train. On the way: options (the
recipe) and preflight, data/ and feed/ (batches), model/ and parallel/ (the model over processes), checkpoint/
and recovery/, provenance/ and telemetry/ (what is recorded). Apart: planning/ (costs), mix/ (mixtures),
huggingface/ (its weights)."""
