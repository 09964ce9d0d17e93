"""Clusters: from a YAML profile to a `Cluster` of devices, links, and the mesh laid over them."""
