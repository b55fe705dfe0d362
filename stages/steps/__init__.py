"""The steps of a source's chain that are one module each, in order: url, prefilter, parse, language,
classifier, …"""
