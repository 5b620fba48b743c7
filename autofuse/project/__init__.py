"""Many files: which ones, with which settings, in which order, and one run over all of them."""
