"""Advice with a plan: what a solve shows to be faster (a size rounded up, fewer devices, optimizer state apart)."""
