"""The gallery: rewrites public repositories, and trains each before and after with its own training code."""
