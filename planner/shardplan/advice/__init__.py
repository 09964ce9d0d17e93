"""Advice with a plan: a size rounded up, or fewer devices, if a solve shows that the step gets shorter."""
