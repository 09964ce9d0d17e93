"""A scaled-down model with the same plan, for models that are too large to run."""
