"""What the pipeline is measured beside: datatrove's pipeline, rensa, our units without Ray, the libraries
alone."""
