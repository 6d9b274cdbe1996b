"""How many parameters a model has, by what becomes of them: computed from its dimensions.

Checked against the models that vLLM builds from the same config. Speculative (MTP) layers, vision
towers and buffers are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Parameters:
    """`table`: the embedding, of which a step reads a row; `head`: the output matrix, 0 if tied.

    `matrices`: what every token multiplies with; `experts`: routed ones, of which each token uses
    `experts_per_token` of `num_experts`; `vectors`: norms, biases and the like.
    """

    table: int = 0
    head: int = 0
    matrices: int = 0
    experts: int = 0
    vectors: int = 0
    num_experts: int = 1
    experts_per_token: int = 1

    @property
    def total(self) -> int:
        return self.table + self.head + self.matrices + self.experts + self.vectors

    @property
    def active(self) -> float:
        """Those that one token uses, the embedding table among them: P in 2·P FLOP a token."""
        return self.total - self.experts * (1 - self.experts_per_token / self.num_experts)

    def expert_share_read(self, batch: int) -> float:
        """Share of the experts that a decode step of `batch` tokens reads: 1 - (1 - k/E)^B.

        For routing that is even and independent; real routing is less even and reads less.
        """
        return 1 - (1 - self.experts_per_token / self.num_experts) ** batch

    def plus(self, *, matrices: int = 0, experts: int = 0, vectors: int = 0) -> Parameters:
        """With a layer's parameters on top."""
        return replace(
            self,
            matrices=self.matrices + matrices,
            experts=self.experts + experts,
            vectors=self.vectors + vectors,
        )


def embedding(vocab_size: int, hidden_size: int, *, is_tied: bool) -> Parameters:
    """Table, output head unless tied, and the final norm."""
    table = vocab_size * hidden_size
    return Parameters(table=table, head=0 if is_tied else table, vectors=hidden_size)


def attention_matrices(hidden: int, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Q, K, V and output projection."""
    return 2 * hidden * head_dim * (num_heads + num_kv_heads)


def gated_mlp(hidden: int, intermediate: int) -> int:
    """Gate, up and down projection."""
    return 3 * hidden * intermediate
