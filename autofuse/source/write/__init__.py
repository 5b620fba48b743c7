"""Edits to text: only the statements that change, everything else byte for byte."""
