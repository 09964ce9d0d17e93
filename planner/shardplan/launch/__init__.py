"""Launchers: a plan's ranks on machines, scripts that start them, and what a launcher tells its processes."""
