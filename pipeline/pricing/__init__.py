"""What a data run will cost, before it starts. Read in this order: `price` (the whole), `sample` (what is read),
`measure` (what it came to), `estimate` (from a sample to the whole, with intervals)."""
