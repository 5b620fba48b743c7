"""Trains a model plain and optimized in every distributed wrapping, compares, and writes the table in docs/."""
