"""Providers: the ways to compute an operation of autofuse.ops, and the choice between them for each call.

This folder does not depend on rules or models.
"""
