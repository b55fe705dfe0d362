"""What does not hold of an output: output calls files, shards, steps, documents, duplicates;
problems is what they say.
"""
