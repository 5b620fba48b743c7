"""The documentation site: pages that are generated when mkdocs builds it."""
