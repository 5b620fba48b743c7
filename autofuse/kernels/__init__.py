"""Providers: the ways in which an operation of autofuse.ops can be computed, and which of them a call takes.

Knows kernels, packages and what they refuse; must not know rules, models or where a call came from.
"""
