"""Optional parts outside of planning: other planners' prices, calibration, contest files, checks of XLA's output."""
