"""State: checkpoints written by one model and read by the other, models on the meta device, parameters seen whole."""
