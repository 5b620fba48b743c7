"""One optimized model: plan, check, weigh, install, report."""
