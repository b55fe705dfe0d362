"""The quality step: step, options → rule_sets/ (tables of rules) → rules, text_view → words, languages,
spacy_tokens, affixes (how a text is split), characters; offending finds the lines that count against a text.
"""
