"""Every test process computes with one thread, unless told otherwise: pytest-xdist runs a process for each core."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
