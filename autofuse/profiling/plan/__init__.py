"""A training step on paper: the memory it needs and how it scales, before anything is run or bought."""
