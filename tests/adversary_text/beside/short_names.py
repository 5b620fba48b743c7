"""Names of torch with another meaning, for a star import."""

import math as F  # noqa: F401

import torch  # noqa: F401

nn = None
