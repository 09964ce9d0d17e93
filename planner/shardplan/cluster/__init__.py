"""YAML profile -> `Cluster`: devices, links, and the mesh laid over them."""
