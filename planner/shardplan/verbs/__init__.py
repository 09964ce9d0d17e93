"""One file per verb of the command line: options, one call, rendering."""
