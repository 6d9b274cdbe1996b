"""What a worker tells the scheduler: link speeds at the start, refused blocks with each report."""

from collections.abc import Callable

import pytest
from kit import Agent, Rig
from kit.copies import BYTES_PER_S
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)

from agentkv.connectors.worker_side import AgentKVWorkerMetadata, LinkSpeeds, slowest

RigFactory = Callable[..., Rig]


def test_the_links_are_measured_before_the_first_step(make_rig: RigFactory) -> None:
    links = make_rig().worker.get_handshake_metadata()
    assert links.load_bytes_per_s == pytest.approx(BYTES_PER_S)
    assert links.store_bytes_per_s == pytest.approx(BYTES_PER_S)


def test_what_the_measurement_wrote_is_no_hit(make_rig: RigFactory) -> None:
    rig = make_rig()
    assert rig.copies.num_stores == 0 and not rig.dram.chunks
    first = Agent(rig, "agent", 1, 4).turn()
    assert first.gpu_hit_tokens == 0 and first.dram_hit_tokens == 0


def test_a_transfer_is_as_fast_as_its_slowest_rank() -> None:
    ranks = [LinkSpeeds(3e9, 8e9), LinkSpeeds(5e9, 2e9)]
    assert slowest(ranks) == LinkSpeeds(3e9, 2e9)


def test_reports_of_several_ranks_are_merged() -> None:
    ranks = [
        AgentKVWorkerMetadata(completed_jobs={1: 1}),
        AgentKVWorkerMetadata(completed_jobs={1: 1, 2: 1}, refused_chunks=[7]),
        OffloadingWorkerMetadata(completed_jobs={2: 1}),
        AgentKVWorkerMetadata(refused_chunks=[7, 9]),
    ]
    merged = ranks[0]
    for other in ranks[1:]:
        merged = merged.aggregate(other)
    assert merged.completed_jobs == {1: 2, 2: 2}
    assert merged.refused_chunks == [7, 7, 9]


def test_every_report_is_of_our_kind_so_that_the_first_rank_hides_no_refusal(
    make_rig: RigFactory,
) -> None:
    rig = make_rig()
    kinds: set[type] = set()
    build = rig.worker.build_connector_worker_meta

    def watched() -> AgentKVWorkerMetadata | None:
        report = build()
        kinds.add(type(report))
        return report

    rig.worker.build_connector_worker_meta = watched
    Agent(rig, "agent", 1, 4).turn()
    assert kinds == {type(None), AgentKVWorkerMetadata}
