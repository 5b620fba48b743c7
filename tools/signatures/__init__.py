"""What functions of other packages take, read off their sources and kept as facts for the tests.

`python -m tools.signatures` downloads the packages that providers come from, parses them and writes, for every function
that a provider calls, the names and defaults of its parameters to tests/kernels/signatures/. Nothing of a package
is imported, and nothing of its text is kept but those names.
"""
