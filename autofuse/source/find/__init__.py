"""One file to findings: which functions are captured, and what is found in them."""
