"""What people ask of a recipe or an output: explain, scan, likeness, trace;
hooks hands lineage what it cannot import.
"""
