"""Computations that people write out by hand, recognised and named. One file for each family of rules."""
