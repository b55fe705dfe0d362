"""Source code: extensions (a file's language by its name), generated (what a program wrote), licenses,
notebooks."""
