"""`sluice export OUT`: the corpus for other tools.

process.py is read first; request.py is what is asked for, units.py the units of work, texts.py and tokens.py
what they read, sink.py what they write, formats/ a module a format, clean.py what a purge does to an export.
"""
