"""Rules from files: found, read, checked by their examples, and selected by code."""
