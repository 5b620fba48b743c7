"""The same models by eager PyTorch, other optimizers of models, and autofuse, side by side."""
