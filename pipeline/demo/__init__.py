"""`sluice demo`: a crawl with planted truth and the tour through everything."""
