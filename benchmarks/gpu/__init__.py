"""Correctness, operations and whole training steps on a GPU, in one command that can be interrupted; see __main__."""
