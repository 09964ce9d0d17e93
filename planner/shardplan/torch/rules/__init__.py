"""Sharding rules of torch operations, one module per family, and the table that finds the rule of a function."""
