"""What planning does not need: other planners' prices, calibration, contest files, checks of XLA's output."""
