"""Collections that are generated: nothing to download."""
