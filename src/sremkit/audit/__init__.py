"""Find the wrong pairs in anybody's data: verdicts, report, export."""
