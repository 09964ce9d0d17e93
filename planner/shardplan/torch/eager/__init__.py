"""Eager execution of plans: planned tensors flow through the module's own code."""
