"""Logits that are computed only if somebody reads them: a tensor subclass, its losses, and the layer of it."""
