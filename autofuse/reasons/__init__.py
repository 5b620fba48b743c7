"""Why something is not fused: every reason there is, with its stable code, its sentence and its advice. Imports nothing
of autofuse, so that all of it may give reasons."""
