"""Profiles of training steps: measured live, read from traces, or worked out on paper. Nothing here imports torch."""
