"""Runs training steps under instruments, one kind at a time, and puts what they say together as one profile."""
