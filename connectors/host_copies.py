"""The copies themselves: pages of vLLM's CPU KV cache to and from the rows of the DRAM tier.

In large NumPy operations, which release the GIL, and with little else that holds it: the model's
own thread needs it. Every chunk stored gets an xxh3 checksum that is verified before it is loaded.
Used by `cpu_worker` and its threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec

from .chunk_sums import NO_SUM, ChunkSums, Sums, checksum

Rows = np.ndarray[Any, np.dtype[np.uint8]]
Indices = np.ndarray[Any, np.dtype[np.int64]]

LOAD, STORE = 0, 1
_ROW_BYTES = 32 << 10
_LONG_RUN = 4  # KV blocks; from here on one copy per run beats gathering and scattering


@dataclass(frozen=True, slots=True)
class PageCopies:
    """KV blocks of one group against their places in DRAM chunks, as parallel arrays.

    Block `blocks[i]` lies in chunk `chunks[i]` at position `subs[i]` of its blocks.
    """

    group: int
    blocks: Indices
    chunks: Indices
    subs: Indices

    def __len__(self) -> int:
        return len(self.blocks)

    def part(self, start: int, stop: int) -> PageCopies:
        return PageCopies(
            self.group, self.blocks[start:stop], self.chunks[start:stop], self.subs[start:stop]
        )

    def where(self, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> PageCopies:
        return PageCopies(self.group, self.blocks[keep], self.chunks[keep], self.subs[keep])


class HostCopies:
    """The copies themselves: KV cache pages to and from rows of the DRAM tier, with checksums.

    vLLM's scheduler sees to it that a chunk or block has one transfer at a time, so threads need no
    lock here.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        *,
        blocks_per_chunk: int,
        make_dram_view: Callable[[int], torch.Tensor],
        sums: ChunkSums | None = None,
        rank: int = 0,
    ) -> None:
        """`sums`: where the chunks' checksums lie, if others read or fill chunks too."""
        self.blocks_per_chunk = blocks_per_chunk
        self._pages: list[Rows] = []
        self._dram: list[Rows] = []
        for cache in kv_caches.tensors:
            view = make_dram_view(cache.page_size_bytes * blocks_per_chunk)
            self._pages.append(cache.tensor.view(torch.uint8).numpy())
            self._dram.append(view.view(torch.uint8).numpy())
        first = self._dram[0]
        row_bytes = sum(rows.shape[1] for rows in self._dram)
        # The tensors' parts of a chunk lie side by side: one row is one checksum.
        num_chunks = first.shape[0]
        if sums is None:
            sums = ChunkSums(num_workers=1, num_chunks=num_chunks, page_bytes=row_bytes)
        self._rows: Rows = np.lib.stride_tricks.as_strided(
            first, (num_chunks, sums.page_bytes), (first.strides[0], 1)
        )
        self._sums: Sums = sums.of_worker(rank)
        self._tensors_of_group = [
            tuple(dict.fromkeys(ref.tensor_idx for ref in refs))
            for refs in kv_caches.group_data_refs
        ]

    def block_bytes(self, group: int) -> int:
        return sum(self._pages[tensor].shape[1] for tensor in self._tensors_of_group[group])

    def store(self, copies: PageCopies) -> None:
        """Copies blocks into their chunks and notes the chunks' checksums.

        A chunk's blocks must come in one call.
        """
        self._sums[copies.chunks] = NO_SUM
        if self._is_by_row(copies):
            for block, chunk in zip(copies.blocks.tolist(), copies.chunks.tolist(), strict=True):
                for tensor in self._tensors_of_group[copies.group]:
                    np.copyto(self._dram[tensor][chunk], self._pages[tensor][block])
                self._sums[chunk] = checksum(self._rows[chunk])  # Still in the core's cache.
            return
        for tensor in self._tensors_of_group[copies.group]:
            self._copy(tensor, copies, kind=STORE)
        for chunk in np.unique(copies.chunks).tolist():
            self._sums[chunk] = checksum(self._rows[chunk])

    def load(self, copies: PageCopies) -> PageCopies:
        """Copies blocks out of their chunks; returns those whose chunk does not match its checksum.

        Refused blocks keep what they held.
        """
        if self._is_by_row(copies):
            keep = np.ones(len(copies), bool)
            for i, (block, chunk) in enumerate(
                zip(copies.blocks.tolist(), copies.chunks.tolist(), strict=True)
            ):
                keep[i] = checksum(self._rows[chunk]) == int(self._sums[chunk])
                if keep[i]:
                    for tensor in self._tensors_of_group[copies.group]:
                        np.copyto(self._pages[tensor][block], self._dram[tensor][chunk])
            return copies.where(~keep)
        is_good = {
            chunk: checksum(self._rows[chunk]) == int(self._sums[chunk])
            for chunk in np.unique(copies.chunks).tolist()
        }
        keep = np.fromiter((is_good[c] for c in copies.chunks.tolist()), bool, len(copies))
        good = copies if keep.all() else copies.where(keep)
        for tensor in self._tensors_of_group[copies.group]:
            self._copy(tensor, good, kind=LOAD)
        return copies.where(~keep)

    def release(self) -> None:
        self._pages.clear()
        self._dram.clear()
        self._rows = np.empty((0, 0), np.uint8)

    def _is_by_row(self, copies: PageCopies) -> bool:
        """Whether pages are large enough to go one by one, each with its checksum beside it."""
        pages = (self._pages[tensor] for tensor in self._tensors_of_group[copies.group])
        return self.blocks_per_chunk == 1 and min(p.shape[1] for p in pages) >= _ROW_BYTES

    def _copy(self, tensor: int, copies: PageCopies, *, kind: int) -> None:
        pages, dram = self._pages[tensor], self._dram[tensor]
        if self.blocks_per_chunk > 1:
            self._copy_parts(pages, dram, copies, kind=kind)
            return
        runs = list(_runs(copies))
        if len(copies) >= _LONG_RUN * len(runs):
            for start, stop in runs:
                block, chunk = int(copies.blocks[start]), int(copies.chunks[start])
                page_slice = pages[block : block + stop - start]
                dram_slice = dram[chunk : chunk + stop - start]
                if kind == STORE:
                    np.copyto(dram_slice, page_slice)
                else:
                    np.copyto(page_slice, dram_slice)
        elif kind == STORE:
            dram[copies.chunks] = pages[copies.blocks]
        else:
            pages[copies.blocks] = dram[copies.chunks]

    def _copy_parts(self, pages: Rows, dram: Rows, copies: PageCopies, *, kind: int) -> None:
        size = pages.shape[1]
        for block, chunk, sub in zip(
            copies.blocks.tolist(), copies.chunks.tolist(), copies.subs.tolist(), strict=True
        ):
            slot = dram[chunk, sub * size : (sub + 1) * size]
            if kind == STORE:
                np.copyto(slot, pages[block])
            else:
                np.copyto(pages[block], slot)


def plan_copies(
    gpu_spec: GPULoadStoreSpec, chunk_ids: np.ndarray[Any, Any], blocks_per_chunk: int
) -> Iterator[PageCopies]:
    """Pairs each KV block of a job with its chunk and its place inside the chunk, group by group.

    The first block of a group may lie inside a chunk: `block_indices` gives its logical index.
    """
    block_start = chunk_start = 0
    for group, (num_blocks, first_index) in enumerate(
        zip(gpu_spec.group_sizes, gpu_spec.block_indices, strict=True)
    ):
        if num_blocks == 0:
            continue
        skipped = first_index % blocks_per_chunk
        places = np.arange(skipped, skipped + num_blocks)
        yield PageCopies(
            group,
            np.asarray(gpu_spec.block_ids[block_start : block_start + num_blocks], np.int64),
            np.asarray(chunk_ids[chunk_start + places // blocks_per_chunk], np.int64),
            places % blocks_per_chunk,
        )
        block_start += num_blocks
        chunk_start += -(-(num_blocks + skipped) // blocks_per_chunk)


def _runs(copies: PageCopies) -> Iterator[tuple[int, int]]:
    """Stretches [start, stop) in which blocks and chunks both count up by one."""
    breaks = np.flatnonzero((np.diff(copies.blocks) != 1) | (np.diff(copies.chunks) != 1)) + 1
    edges = [0, *breaks.tolist(), len(copies)]
    yield from (pair for pair in itertools.pairwise(edges) if pair[0] < pair[1])
