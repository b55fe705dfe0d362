"""Repeats inside documents, as functions: options → anchors → runs → cuts; lines and paragraphs."""
