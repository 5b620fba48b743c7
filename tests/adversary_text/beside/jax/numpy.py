"""Arrays with the names of numpy's."""

from numpy import *  # noqa: F403
from numpy import ndarray as ndarray
