"""Tables of rules, one module a rule set: gopher_quality, gopher_repetition, c4, fineweb; c4 edits the text too."""
