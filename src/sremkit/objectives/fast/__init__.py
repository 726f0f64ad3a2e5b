"""SREM in a few passes over the logits, with a gradient in closed form; tested against `srem_reference`."""
