"""Draws results: terminal, notebook, HTML page. Knows what results hold; never how they were obtained."""
