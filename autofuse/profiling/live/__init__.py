"""Runs training steps under instruments, one kind at a time, and combines their results into one profile."""
