"""HiGHS: the integer program of a core, and calls to HiGHS that a deadline can abandon."""
