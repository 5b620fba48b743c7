"""Trains a model plain and optimized in every distributed wrapping, compares, and keeps the table in docs/."""
