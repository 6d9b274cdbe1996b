"""A process that works a small disk store without a pause, to be killed at any moment.

Run as `python -m tiers.disk_victim PATH SEED`; prints a line when it has begun.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

from tiers.disk_kit import entries_of, key_of, open_store

NUM_KEYS = 200
SIZE_BYTES = 700_000
BLOCK_BYTES = 16384


def work(path: Path, seed: int) -> None:
    """Stores, loads and deletes until it is killed; clears once in a while."""
    store = open_store(
        path, size_bytes=SIZE_BYTES, segment_bytes=300_000, uses_callers_memory=seed % 2 > 0
    )
    sources = {n: entry for n, entry in enumerate(entries_of(range(NUM_KEYS)))}

    def one_thread(number: int) -> None:
        rng = random.Random(seed * 2 + number)
        while True:
            some = rng.sample(range(NUM_KEYS), rng.randint(1, 12))
            step = rng.random()
            if step < 0.75:
                store.store([sources[n] for n in some])
            elif step < 0.95:
                store.delete([key_of(n) for n in some])
            elif step < 0.995:
                store.load([entry for entry in entries_of(some)])
            else:
                store.clear()

    for number in range(2):
        threading.Thread(target=one_thread, args=(number,), daemon=True).start()
    print("begun", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
