"""Studies: questions about plans that take a solve, such as alternatives, remedies, comparisons, sweeps and checks."""
