"""Finds out what limits the step of a trace, and what to do about it."""
