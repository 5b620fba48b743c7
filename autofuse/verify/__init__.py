"""The verifier: does rewritten code compute the same as the original, forward and backward?

There are two entry points: modules.py for modules, and functions.py for kernels as functions. They choose the runs;
runs.py and calls.py make them. The judgement is shared:

- differences.py finds differences in kind: structure, dtypes, shapes.
- judging.py compares numbers, with the bound from bounds.py.
- draws.py compares dropout.
"""
