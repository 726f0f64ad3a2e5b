"""What the browser applications share: the app with its security checks, and the server."""
