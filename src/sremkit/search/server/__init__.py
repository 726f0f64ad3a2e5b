"""`srem serve`: search over HTTP, with a page to search in."""
