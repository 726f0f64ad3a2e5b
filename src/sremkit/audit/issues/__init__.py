"""Issues of a collection other than mismatched pairs: one file for each type, one column of the table for each."""
