"""Text to token ids, and ids to shards: vocabulary → tokenizer → shards."""
