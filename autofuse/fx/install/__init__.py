"""Installs a rewritten forward in a live module: guards, generated code, and the dispatcher in its class."""
