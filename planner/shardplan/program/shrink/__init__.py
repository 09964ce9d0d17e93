"""Scaled-down models with the same plan, for models that are too large to run."""
