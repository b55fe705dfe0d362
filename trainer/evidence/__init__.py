"""What is read of a run afterwards, without torch: the certificate and its check, the comparison of two runs, and why a
step came out as it did."""
