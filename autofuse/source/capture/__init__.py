"""Syntax to dataflow: one function of a file becomes a graph."""
