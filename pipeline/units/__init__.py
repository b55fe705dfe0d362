"""What a unit of work writes and comes to: its files and facts, the results of every phase, bad records."""
