"""`sluice demo`: tour is the way through; crawl, pages, prose, spam make the input, warcs writes it, check
judges."""
