"""sluice scan: scan finds the documents, scanned_runs what training runs read of them."""
