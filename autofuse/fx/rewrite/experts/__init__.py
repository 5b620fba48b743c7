"""Mixtures that compute all experts for all tokens, of which a sparse tensor of weights keeps a few."""
