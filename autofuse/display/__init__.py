"""Draws results: terminal, notebook, HTML page. This folder does not depend on how results were obtained."""
