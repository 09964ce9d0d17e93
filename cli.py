"""`python cli.py …` in a checkout is `shardplan …`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "planner"))

from shardplan.cli import main

if __name__ == "__main__":
    sys.exit(main())
