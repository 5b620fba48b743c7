"""Sites: where a rule's pattern stands in a graph, whether it may be rewritten, and which of several to take."""
