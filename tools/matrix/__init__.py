"""Runs the fast tests and a training under several versions of Python and torch."""
