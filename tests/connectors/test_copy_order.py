"""What is copied first: what a turn waits for, then what is wanted soon, then stores."""

import threading
from collections.abc import Callable

import pytest
from kit import Agent, Rig
from kit.control import signal

from agentkv.connectors import cpu_worker
from agentkv.connectors.cpu_worker import CopyPool


def test_the_most_urgent_task_runs_first_and_equals_in_order() -> None:
    pool = CopyPool(num_threads=1)
    is_busy, may_go = threading.Event(), threading.Event()

    def block() -> None:
        is_busy.set()
        may_go.wait(120)

    pool.submit(cpu_worker._STORE, block)
    assert is_busy.wait(120)
    done: list[str] = []
    for name, urgency in (
        ("store", cpu_worker._STORE),
        ("prefetch 1", cpu_worker._PREFETCH),
        ("load", cpu_worker._NEEDED_LOAD),
        ("prefetch 2", cpu_worker._PREFETCH),
    ):
        pool.submit(urgency, lambda name=name: done.append(name))  # type: ignore[misc]
    may_go.set()
    pool.close()
    assert done == ["load", "prefetch 1", "prefetch 2", "store"]


def test_the_worker_tells_prefetches_from_loads_that_a_turn_waits_for(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_worker, "_INLINE_BYTES", 0)
    rig = make_rig(pool_blocks=40, dram_blocks=200)
    urgencies: list[int] = []
    submit = rig.copies._pool.submit

    def note(urgency: int, task: Callable[[], None]) -> None:
        urgencies.append(urgency)
        submit(urgency, task)

    rig.copies._pool.submit = note  # type: ignore[method-assign]
    agent = Agent(rig, "agent", 1, 10)
    agent.turn()
    assert set(urgencies) == {cpu_worker._STORE}
    rig.drop_gpu_cache()
    urgencies.clear()
    signal(rig, "resume", "agent")
    rig.settle()
    assert set(urgencies) == {cpu_worker._PREFETCH}
    rig.drop_gpu_cache()
    urgencies.clear()
    agent.turn()
    assert cpu_worker._NEEDED_LOAD in urgencies and cpu_worker._PREFETCH not in urgencies
    assert rig.copies._prefetches == set()


def test_a_step_that_computes_nothing_waits_a_moment_for_a_load_and_for_nothing_else(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_worker, "_IDLE_WAIT_S", 120.0)
    worker = make_rig(pool_blocks=40, dram_blocks=200).copies

    def begin(job_id: int, urgency: int) -> cpu_worker._Job:
        job = cpu_worker._Job(job_id, cpu_worker.LOAD, urgency, 1, 0.0)
        worker._jobs[job_id] = job
        return job

    def finished() -> list[int]:
        return [result.job_id for result in worker.get_finished()]

    prefetch, load = begin(1, cpu_worker._PREFETCH), begin(2, cpu_worker._NEEDED_LOAD)
    worker.is_step_idle = False
    assert finished() == []
    worker.is_step_idle = True
    threading.Timer(0.05, worker._finish, [load]).start()
    assert finished() == [2]
    waits: list[float] = []
    monkeypatch.setattr(prefetch.done, "wait", waits.append)
    assert finished() == [] and waits == []
    worker._finish(prefetch)
    assert finished() == [1]
