"""Counts the faults that a maintainer would object to in autofuse's edits of real sources."""
