"""HiGHS: the integer program of a core, and calls that do not listen."""
