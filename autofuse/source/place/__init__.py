"""Turns a site into an edit: where the fused call goes, and which statements are no longer needed."""
