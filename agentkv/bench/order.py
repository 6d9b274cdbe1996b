"""Which blocks are moved when, and under which names: the same for a tier and its peers.

Why new names in each round: a tier that has an entry does not write it again. Why loads in random
order: that is how sessions come back.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path


def names_of(seed: int, round_number: int, num_blocks: int) -> list[str]:
    """Names of the blocks of a round, 64 hexadecimal characters each."""
    return [
        hashlib.sha256(f"{seed}/{round_number}/{i}".encode()).hexdigest() for i in range(num_blocks)
    ]


def batches(order: Sequence[int], num_batches: int) -> Iterator[Sequence[int]]:
    """The order in pieces of about equal length."""
    edges = [i * len(order) // num_batches for i in range(num_batches + 1)]
    yield from (order[a:b] for a, b in itertools.pairwise(edges))


def shuffled(seed: int, round_number: int, num_blocks: int) -> list[int]:
    """The order in which a round's blocks are loaded, the same for all."""
    order = list(range(num_blocks))
    random.Random(f"{seed}/{round_number}/order").shuffle(order)
    return order


def forget_cached(folder: Path) -> None:
    """Lets the page cache go of all files below a directory."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
