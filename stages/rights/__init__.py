"""What publishers say of the use of their pages for training.

Read `signal`, `preferences`, `robots`, `tdmrep`, `page`, `sites`, `decide`."""
