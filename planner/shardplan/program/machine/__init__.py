"""The simulated machine: runs a program on all devices of a mesh in one process and compares with the whole model."""
