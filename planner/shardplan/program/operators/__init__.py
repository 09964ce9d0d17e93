"""Descriptions of operators on shards: the nodes that one device runs in place of each operator."""
