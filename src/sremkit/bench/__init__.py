"""Tables, ablations and speed, each a command that anybody can run again."""
