"""Integrations with trainers; each module imports the package of its trainer, and nothing else does."""
