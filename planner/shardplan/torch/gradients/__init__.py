"""Moves in autograd: backward collectives, gradient accumulation, gradient bucketing, re-gathering."""
