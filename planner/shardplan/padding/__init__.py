"""Padding of models: a size is increased so that mesh axes divide it; the last shards hold padding."""
