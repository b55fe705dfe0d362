"""What a unit of work writes and comes to: its files, the facts beside them, bad records."""
