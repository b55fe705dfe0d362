"""The input files of a source: files lists and opens them, http_file reads one from a web server."""
