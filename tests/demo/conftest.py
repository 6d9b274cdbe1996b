"""The shipped text and its tokenizer, made once: training takes a tenth of a second."""

import pytest
from tokenizers import Tokenizer

from agentkv.demo.checkpoint import train_tokenizer
from agentkv.demo.text import FillText, RecordedSession, recorded_sessions, training_texts
from agentkv.demo.workload import PromptCounter


@pytest.fixture(scope="session")
def recorded() -> list[RecordedSession]:
    return recorded_sessions()


@pytest.fixture(scope="session")
def tokenizer(recorded: list[RecordedSession]) -> Tokenizer:
    return train_tokenizer(training_texts(recorded), vocab_size=4096)


@pytest.fixture
def counter(tokenizer: Tokenizer) -> PromptCounter:
    return PromptCounter(tokenizer)


@pytest.fixture(scope="session")
def fill(recorded: list[RecordedSession], tokenizer: Tokenizer) -> FillText:
    return FillText(tokenizer, training_texts(recorded))
