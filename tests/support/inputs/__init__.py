"""Input files and texts: records well made and ill made, small crawls, texts at the edges of rules."""
