"""Identities and facts: what a document is called, where it lies, what was decided, and who trained on it.

Read upward: `ids`, `recipe`, then storage → index → store → trace → purge → verify. It imports no package of
ours."""
