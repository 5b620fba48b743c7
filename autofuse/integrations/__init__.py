"""Doors into what people train with: one module for each library, imported by those who have that library.

`import autofuse.integrations` imports none of them.
"""
