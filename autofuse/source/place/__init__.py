"""Where the fused call stands, and what becomes dead there: a site becomes an edit."""
