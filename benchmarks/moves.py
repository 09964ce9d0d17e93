"""Carry out the move between every two layouts, and print what was compared.

    python benchmarks/moves.py [--mesh 2x2 --mesh 2x3 --mesh 2x2x2]

Every plain layout of tensors of rank 0 to 3 (shards of every dim over any axes in any order, copies, partial sums or
partial maxima) to every other, by the collectives that a plan would list: for a tensor of 1 KiB, where latency decides,
and of 256 MiB, where bandwidth does. Carried out on all devices, on whole numbers, a move must give exactly the target,
each of its collectives must move exactly the bytes that are priced, and their prices must sum to what the solver is
told. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

from move_pairs import LARGE, MESHES, SMALL, Moves  # noqa: E402

from shardplan.layout.text import to_text  # noqa: E402

RANKS = range(4)
SHOWN = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mesh", action="append", help=f"default: {', '.join(MESHES)}")
    given = parser.parse_args()
    print(f"{'mesh':6} {'rank':>4} {'partial':7} {'tensor':>7} {'layouts':>7} {'pairs':>7} {'moves':>7}", end="")
    print(f" {'collectives':>11} {'moved bytes':>13} {'failures':>8} {'CPU s':>6}")
    failed = 0
    for mesh, rank, reduction, size in itertools.product(given.mesh or MESHES, RANKS, ("sum", "max"), (SMALL, LARGE)):
        start = time.process_time()
        moves = Moves(mesh, rank, size, reduction)
        pairs = list(itertools.product(moves.layouts, repeat=2))
        faults = [(pair, fault) for pair in pairs if (fault := moves.fault(*pair))]
        exist = sum(moves.exists(*pair) for pair in pairs)
        tensor = "1 KiB" if size == SMALL else "256 MiB"
        print(
            f"{mesh:6} {rank:4} {reduction:7} {tensor:>7} {len(moves.layouts):7} {len(pairs):7,} {exist:7,} "
            f"{moves.collectives:11,} {moves.moved_bytes:13,} {len(faults):8} {time.process_time() - start:6.1f}",
            flush=True,
        )
        for (source, target), fault in faults[:SHOWN]:
            print(f"    {to_text(source, moves.mesh)} -> {to_text(target, moves.mesh)}: {fault}")
        failed += len(faults)
    print("\nall values and bytes as priced" if not failed else f"\n{failed} moves are wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
