"""`python -m shardplan …` is `shardplan …`."""

import sys

from shardplan.cli import main

if __name__ == "__main__":
    sys.exit(main())
