"""The command line: one thin file a command. Work is done elsewhere."""
