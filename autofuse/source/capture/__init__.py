"""Captures the dataflow graph of a function from its source code."""
