"""Draws results: terminal, notebook, HTML page. This folder knows what results hold, and not how they were obtained."""
