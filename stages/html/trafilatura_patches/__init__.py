"""Patches of trafilatura 2.3.1, with equal texts in less time: apply (all of them, for that one release) →
loading, xpaths, readability, paragraphs, deleting, composing (one patch each) → faults (a patch's own error
is never taken for a page's)."""
