"""The verifier: does rewritten code compute what the original computes, forward and backward?

Two thin doors, for modules (modules.py) and for kernels as functions (functions.py), say what is run; runs.py and
calls.py make the runs. What is judged, and how strictly, stands once: what differs in kind (differences.py), how far
numbers may lie apart (judging.py, by the bound of bounds.py), and whether dropout is the same (draws.py).
"""
