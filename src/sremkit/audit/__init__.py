"""The audit of image-text pairs: scores, mismatches, report, export."""
