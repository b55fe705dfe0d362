"""Files that appear whole or not at all, on disk or in an object store, and who may write: folder, objects,
lock; below them temporary, errors and clients (which client a URL has)."""
