"""The quality step: step, judged_languages, options → rule_sets/ (catalogue, tables of rules) → rules, text_view →
words, languages, spacy_tokens, affixes (how a text is split), characters; offending finds the lines that count
against a text."""
