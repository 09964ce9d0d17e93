"""Operators on shards: the steps that one device runs in place of each."""
