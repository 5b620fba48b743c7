"""What a star import brings: names of torch that mean something else."""

import math as F  # noqa: F401

import torch  # noqa: F401

nn = None
