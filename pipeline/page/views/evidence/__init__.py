"""What an output says to publishers, authorities and rights holders: `signals`, then `record`, then `proof`."""
