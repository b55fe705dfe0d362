"""What the pipeline is measured beside: datatrove's pipeline, our units without Ray, the libraries alone."""
