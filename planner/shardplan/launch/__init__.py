"""Launchers: assignment of ranks to machines, scripts that start them, and the environment of a process."""
