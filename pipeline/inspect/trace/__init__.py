"""sluice trace: tracing, training_runs, why_repeated; document_history prints what they found."""
