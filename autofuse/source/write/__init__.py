"""Applies edits to the text of a file. Statements that no edit changes keep their bytes."""
