"""A run from its first call to its end. Read train first (begin, load, step, go back, end), then parts (what a step, a
checkpoint and a report need), assemble, steps, saving; hooks is what the run asks of whatever replaces its processes.
preflight: what is wrong with a recipe, before any process starts; joining: which attempt this is and where it begins;
first_weights; step: the seven phases of one step; reporter: its figures. observe and measure do such steps for other
ends: to look at one again, and to time a model."""
