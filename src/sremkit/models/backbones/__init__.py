"""One file a backbone: what `srem list backbones` shows."""
