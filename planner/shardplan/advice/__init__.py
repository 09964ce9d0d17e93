"""Advice beside a plan: a size rounded up, or fewer devices, with the step that was solved for it."""
