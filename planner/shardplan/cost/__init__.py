"""Seconds and bytes: collectives, compute, memory."""
