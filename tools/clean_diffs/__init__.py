"""Counts what a maintainer would send back in the edits that autofuse makes in real sources."""
