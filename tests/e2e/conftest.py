"""What the end-to-end tests share: a small checkpoint, a stock engine to compare with, one lock."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkv.demo.checkpoint import ModelShape, write_checkpoint

# Before vLLM is imported: it reads some of these only then.
os.environ.update(
    {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # Two spinning threads wait for each other on a busy machine.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
)

from agentkv.connectors import cpu_worker

from .checks import assert_clean
from .engine import Engine

# Large weights: attention is then sharp, and a damaged block shows in the output.
SHAPE = ModelShape(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=4096,
    initializer_range=0.4,
)

StartEngine = Callable[..., Engine]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def engine_lock() -> Iterator[None]:
    """At most one test run on a machine starts engines: they need all of its cores."""
    path = Path(tempfile.gettempdir()) / "engine.lock"
    open_files = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    if str(path) in open_files:  # `flock` started this run and holds it already.
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random float32 weights and a tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, ["call the tool and run the tests again"] * 10, seed=0, shape=SHAPE)
    return folder


@pytest.fixture(scope="session")
def base(model: Path, engine_lock: None) -> Iterator[Engine]:
    """A stock vLLM, the plugin off, with room for everything: what it answers is right."""
    engine = Engine(model, None, num_blocks=600)
    yield engine
    engine.close()


@pytest.fixture(params=["threads"])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How blocks are copied: by "threads" as for a model of any size, or "inline" as for this one.

    Threads unless a test asks for both: they are what can go wrong.
    """
    kind: str = request.param
    if kind == "threads":
        monkeypatch.setattr(cpu_worker, "_INLINE_BYTES", 0)
    return kind


@pytest.fixture
def start(model: Path, engine_lock: None, copies: str) -> Iterator[StartEngine]:
    """Starts engines for one test, which must leave nothing behind in them."""
    engines: list[Engine] = []

    def start(settings: dict[str, Any] | None = None, **options: Any) -> Engine:
        engines.append(Engine(model, settings or {}, **{"num_blocks": 40, **options}))
        return engines[-1]

    yield start
    try:
        for engine in engines:
            if not engine.is_closed:
                assert_clean(engine)
    finally:
        for engine in engines:
            engine.close()


@pytest.fixture
def engine(start: StartEngine) -> Engine:
    """One with the plugin, room in the pool for 40 blocks and for all in DRAM."""
    return start()
