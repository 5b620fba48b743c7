"""Sites: where a rule's pattern matches in a graph, whether it may be rewritten, and which of several is chosen."""
