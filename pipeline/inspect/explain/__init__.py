"""sluice explain: explaining → given_document or refetch, then explanation, a verdict of each step."""
