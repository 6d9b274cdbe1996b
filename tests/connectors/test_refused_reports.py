"""A refused page is reported in the terms of whoever can do something about it."""

from agentkv import metrics
from agentkv.connectors.cpu_worker import RefusedPage
from agentkv.connectors.pool_load import REQUEST_PREFIX
from agentkv.connectors.refused_loads import RefusedLoads
from agentkv.metrics import Recorder

PAGES = [RefusedPage(job_id=1, block_id=7, chunk_id=3)]


def test_with_one_group_its_block_is_computed_again() -> None:
    loads = RefusedLoads(1, Recorder())
    loads.note(PAGES, {1: "turn"})
    assert loads.take_block_ids() == {7} and loads.take_block_ids() == set()
    assert loads.take_requests({"turn"}) == set()


def test_with_several_groups_the_turn_is_once_it_is_received() -> None:
    loads = RefusedLoads(2, Recorder())
    loads.note(PAGES, {1: "turn"})
    assert loads.take_block_ids() == set()
    assert loads.take_requests({"other"}) == set()
    assert loads.take_requests({"turn"}) == {"turn"}
    assert loads.take_requests({"turn"}) == set()


def test_of_a_prefetch_our_own_side_hears_and_vllm_nothing() -> None:
    recorder = Recorder()
    loads = RefusedLoads(1, recorder)
    loads.note(PAGES, {1: f"{REQUEST_PREFIX}1"})
    assert (loads.take_block_ids(), loads.take_prefetches()) == (set(), [f"{REQUEST_PREFIX}1"])
    assert (loads.take_chunks(), loads.take_prefetches()) == ([3], [])
    assert recorder.counters[metrics.LOAD_FAILURES, ("checksum",)] == 1
