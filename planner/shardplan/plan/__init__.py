"""The plan file: what it holds, how it is read and written."""
