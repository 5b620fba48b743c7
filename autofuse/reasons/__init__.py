"""The reasons why something is not fused. Each has a stable code, a sentence and an advice.

This package imports no other part of autofuse, so every part can use it.
"""
