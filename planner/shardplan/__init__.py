"""Plan how a neural network is split over a device mesh, prove the plan optimal, and save it as a file."""

__version__ = "0.1.0"
