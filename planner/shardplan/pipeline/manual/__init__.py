"""Stages fixed by hand: read from a constraints file or a plan, matched against the model, planned one by one."""
