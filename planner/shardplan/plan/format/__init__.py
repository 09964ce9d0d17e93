"""The plan file's format: one table of fields, from which it is written, read, checked, signed and compared."""
