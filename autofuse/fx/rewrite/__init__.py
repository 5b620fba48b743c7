"""Rewrites the traced graph of a module: lowers it, finds sites, writes fused calls."""
