"""Terminal tables and JSON: everything a person or a script sees."""
