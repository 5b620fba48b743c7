"""The release checklist as a command."""
