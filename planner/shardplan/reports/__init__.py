"""Reports: plans, diffs, sweeps and comparisons as one HTML file that needs no network."""
