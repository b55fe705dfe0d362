"""The pages of training: of a run (goodput, profile, diagnosis, why), of its weights (evaluation, certificate), and
of ablations (mix)."""
