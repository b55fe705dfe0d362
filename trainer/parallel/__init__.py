"""The model over a mesh of processes: mesh makes it, by a layout that checks lets pass, from tensor, context,
pipeline, float8 and recompute; weights are their first values and pieces; groups are the process groups that these
talk in."""
