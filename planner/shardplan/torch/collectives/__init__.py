"""Collectives of a plan on local tensors: which ones a move takes, and how each one is carried out."""
