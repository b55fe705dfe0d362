"""WARC, ARC and WACZ files: wacz → documents → record → head, headers, sniff, body."""
