"""Plans on modules as they are: planned tensors flow through the module's own code."""
