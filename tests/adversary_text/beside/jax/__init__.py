"""A library whose arrays have the names of numpy's."""
