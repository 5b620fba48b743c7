"""Records the signatures of functions of other packages, from their sources, for the tests.

`python -m tools.signatures` downloads the packages of the providers and parses them. For every function that a provider
calls, it writes the names and defaults of the parameters to tests/kernels/signatures/. It imports no package, and keeps
nothing else of its text.
"""
