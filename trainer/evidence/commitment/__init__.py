"""A commitment to what a run read: `readings` counts the readings of each document, `keys` names what is looked up,
`tree` hashes sorted leaves, `commit` publishes the root, `prove` shows presence or absence of one key."""
