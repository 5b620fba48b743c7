"""Logits that are computed only if they are read: a tensor subclass, its losses, and its linear layer."""
