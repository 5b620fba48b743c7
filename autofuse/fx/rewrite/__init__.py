"""From the trace of a module to its rewritten graph: capture, find, write."""
