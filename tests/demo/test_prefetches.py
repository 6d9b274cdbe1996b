"""Prefetch outcomes as the demo reads them from a Prometheus page."""

from agentkv.demo.prefetches import PrefetchCounts, parse_prefetches

PAGE = """\
# HELP agentkv:prefetch_outcomes_total Prefetches by outcome.
# TYPE agentkv:prefetch_outcomes_total counter
agentkv:prefetch_outcomes_total{engine="0",model_name="demo",outcome="useful"} 7.0
agentkv:prefetch_outcomes_total{engine="0",model_name="demo",outcome="late"} 2.0
# HELP agentkv:prefetches_total Loads.
# TYPE agentkv:prefetches_total counter
agentkv:prefetches_total{engine="0",model_name="demo",trigger="headroom"} 9.0
# HELP agentkv:prefetch_early_byte_seconds_total Bytes.
# TYPE agentkv:prefetch_early_byte_seconds_total counter
agentkv:prefetch_early_byte_seconds_total{engine="0",model_name="demo"} 1.5e+06
# HELP agentkv:faults_total Faults.
# TYPE agentkv:faults_total counter
agentkv:faults_total{engine="0",model_name="demo",where="x"} 3.0
"""


def test_counters_are_read_by_outcome_and_trigger() -> None:
    counts = parse_prefetches(PAGE)
    assert counts.outcomes == {"useful": 7.0, "late": 2.0}
    assert counts.triggers == {"headroom": 9.0}
    assert counts.early_byte_s == 1.5e6


def test_only_what_was_added_during_the_replay_counts() -> None:
    before = PrefetchCounts({"useful": 3.0}, {}, 0.5e6)
    assert parse_prefetches(PAGE).since(before) == {
        "useful": 4.0,
        "late": 2.0,
        "lost": 0.0,
        "useless": 0.0,
        "failed": 0.0,
        "early_byte_s": 1.0e6,
        "started_headroom": 9.0,
    }


def test_a_server_that_never_prefetched_counts_nothing() -> None:
    assert set(parse_prefetches("").since(PrefetchCounts()).values()) == {0.0}
