"""What is read of a run afterwards, without torch: the certificate and its check, the comparison of two runs, and why a
step came out as it did. commitment/ has a root over what was read, and proofs against it."""
