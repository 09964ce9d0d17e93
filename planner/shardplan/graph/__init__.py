"""Model, cluster, rules and costs -> cost graph (networkx) -> `Problem` (arrays)."""
