"""What answers each place of the page: `corpus` first, then `search`, `documents`, `evidence`, `purges`."""
