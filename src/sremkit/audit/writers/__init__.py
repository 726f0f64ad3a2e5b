"""Writers of exports: one file a format, each writes the rows of a selection."""
