"""Tools for those who work on autofuse; nothing of this is installed."""
