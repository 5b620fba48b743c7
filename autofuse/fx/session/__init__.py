"""The session of one optimized model: planning, checks, timing, installation, report."""
