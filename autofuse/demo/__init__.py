"""`autofuse demo`: one small model, before and after, from its loss to its source."""
