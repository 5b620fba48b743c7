"""Plans a training step on paper: the memory that it needs, and how it scales."""
