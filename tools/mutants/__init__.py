"""Checks that tests notice small wrong changes of the code. Each change is made in a copy of the tree."""
