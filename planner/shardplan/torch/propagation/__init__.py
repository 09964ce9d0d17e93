"""Sharding propagation: in which layouts an operation of a program reads and makes its tensors under a plan."""
