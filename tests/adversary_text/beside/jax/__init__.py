"""A library whose arrays are spelled as numpy's."""
