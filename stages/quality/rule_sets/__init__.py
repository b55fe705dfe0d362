"""Tables of rules, one module a rule set: gopher_quality, gopher_repetition, c4, fineweb, line_edits, madlad.

text_edits has the sets of one rule or none. c4, line_edits and text_edits edit the text too."""
