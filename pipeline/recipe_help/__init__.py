"""The recipe documents itself: keys → tables, positions → new, check, differ, page."""
