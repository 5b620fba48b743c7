"""The gallery: public repositories rewritten, and trained before and after in their own training code."""
