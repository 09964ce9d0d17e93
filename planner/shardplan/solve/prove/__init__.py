"""Proofs on small cores: cutsets, parts, Pareto-front elimination, and integer programs on what bounds leave."""
