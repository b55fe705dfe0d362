"""What benchmarks share: the cost of a command, a larger crawl, texts of real pages."""
