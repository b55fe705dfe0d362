"""The languages of GitHub's Linguist, and the patterns that part those with an extension in common."""
