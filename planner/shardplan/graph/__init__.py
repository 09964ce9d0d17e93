"""The cost graph: from a model, a cluster, rules and costs to a networkx graph, and from that to a `Problem`
(arrays)."""
