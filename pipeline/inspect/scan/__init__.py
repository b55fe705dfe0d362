"""sluice scan: scan → passes (over a piece) → evidence; scanned_runs finds what training runs read of it."""
