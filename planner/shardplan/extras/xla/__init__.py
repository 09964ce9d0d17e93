"""Collectives in HLO text: parsed, attributed to mesh axes, compared with those of a plan. Nothing needs jax."""
