"""What a unit of work writes and comes to: tally (what it counts), files, parsed_texts, facts, bad records."""
