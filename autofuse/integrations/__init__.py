"""Integrations with training libraries: one module for each library.

`import autofuse.integrations` imports none of them, so no library has to be installed.
"""
