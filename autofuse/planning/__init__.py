"""What a model will need and how fast it may go, worked out without running it at its full size. Simulation."""
