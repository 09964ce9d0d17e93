"""Tables for the terminal and `--json` documents."""
