"""A new forward for a live module: guards and code, and the class that holds them."""
