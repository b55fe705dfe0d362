"""What tests share: small corpora and outputs, servers that fail, processes that are killed."""
