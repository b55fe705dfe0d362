"""Source code: language (which one a file is in), generated (what a program wrote), licenses, notebooks,
page_text (what is visible of HTML)."""
