"""The charset of a page or a text: charset → labels, detector."""
