"""Finds rules in files, reads them, checks them by their examples, and selects them by code."""
