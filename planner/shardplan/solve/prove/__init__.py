"""Proofs on small cores: cutsets, branch and bound over parts, Pareto-front elimination, and integer programs."""
