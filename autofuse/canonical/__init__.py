"""The canonical form: one value for each meaning.

view.py explains it; each other file recognises one kind of spelling.
"""

from autofuse.canonical import arithmetic, choices, shapes
from autofuse.canonical import mask_folds as folds
from autofuse.canonical.recognise import (
    activations,
    divergences,
    likelihoods,
    losses,
    masks,
    precision,
    projections,
    rotary,
    sinks,
    softmax,
    statistics,
)
from autofuse.canonical.recognise.masks import fill_of
from autofuse.canonical.view import CAST, KEEP, LEAF, PERMUTE, View, literal, strip_casts

__all__ = [
    "CAST", "KEEP", "LEAF", "PERMUTE", "View", "activations", "arithmetic", "choices", "divergences", "fill_of",
    "folds", "likelihoods", "literal", "losses", "masks", "precision", "projections", "rotary", "shapes", "sinks",
    "softmax", "statistics", "strip_casts",
]  # fmt: skip
