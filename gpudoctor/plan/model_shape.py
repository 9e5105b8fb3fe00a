"""The dimensions of a decoder-only transformer, and what follows from them."""

from __future__ import annotations

from functools import lru_cache

from gpudoctor.errors import UserError
from gpudoctor.probes.plan_verification.messages import TransformerShape

DEFAULT_SEQ = 4096


class ModelError(UserError):
    """MODEL_SIZE is not a size, or its config.json cannot be planned for."""


class ModelShape(TransformerShape, frozen=True, kw_only=True):
    """The dimensions of a named model; parameter counts include biases and norms.

    `ffn` is the width of one expert. `sinks`: each head has one, and the router a bias, as in gpt_oss. `origin` is the
    source of the dimensions.
    """

    name: str
    family: str
    origin: str
    max_seq: int
    experts: int = 1
    experts_per_token: int = 1
    sinks: bool = False

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's query, key, value and output projections."""
        q, kv, h = self.query_width, self.kv_width, self.hidden
        biases = (q + 2 * kv if self.qkv_bias else 0) + (h if self.out_bias else 0) + (self.heads if self.sinks else 0)
        return 2 * h * q + 2 * h * kv + biases + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one layer's MLP, or of one of its experts."""
        matrices = 3 if self.gated else 2
        biases = (matrices - 1) * self.ffn + self.hidden if self.mlp_bias else 0
        return matrices * self.hidden * self.ffn + biases

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, with all experts and the router."""
        router = self.experts * (self.hidden + self.sinks) if self.experts > 1 else 0
        return self.attention_parameters + self.experts * self.mlp_parameters + router + self.norms * self._norm

    @property
    def embedding_parameters(self) -> int:
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the last norm, and of the output projection unless it is tied to the embedding."""
        return self._norm + (0 if self.tied else self.vocab * self.hidden) + (self.vocab if self.head_bias else 0)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but those of the experts that are not chosen."""
        idle = self.layers * (self.experts - self.experts_per_token) * self.mlp_parameters
        return self.parameters - idle

    @property
    def multiplied_parameters(self) -> int:
        """Parameters in matrix products of one token: the active ones without an embedding that is only looked up."""
        looked_up = self.embedding_parameters - (self.vocab * self.hidden if self.tied else 0)
        return self.active_parameters - looked_up

    @property
    def _norm(self) -> int:
        return self.hidden * (2 if self.norm_bias else 1)


@lru_cache(maxsize=4096)
def layers_of_stages(layers: int, stages: int) -> tuple[int, ...]:
    """The number of layers of each pipeline stage: as even as possible, more in the middle, away from the embedding.

    Megatron-LM does the same if the number of layers is a multiple of the stages less 2 (first and last
    stage have a layer less); arXiv:2401.10241 section 5.1 trains like that.

    >>> layers_of_stages(22, 8)
    (2, 3, 3, 3, 3, 3, 3, 2)
    """
    base, left = divmod(layers, stages)
    middle_first = sorted(range(stages), key=lambda stage: (stage in (0, stages - 1), stage))
    more = set(middle_first[:left])
    return tuple(base + (stage in more) for stage in range(stages))


def seq_of(asked: int | None, shape: ModelShape) -> tuple[int, tuple[str, ...]]:
    """Tokens of a sequence, and a warning if the model was not made for so many. Raises UserError if it cannot."""
    if asked is None:
        return min(DEFAULT_SEQ, shape.max_seq), ()
    if asked > shape.max_seq and shape.positions:
        raise UserError(
            f"--seq {asked}: {shape.name} has {shape.max_seq} learned positions; the nearest that works: "
            f"--seq {shape.max_seq}"
        )
    if asked > shape.max_seq:
        return asked, (f"{shape.name} is made for sequences of up to {shape.max_seq} tokens",)
    return asked, ()


def count_text(parameters: float) -> str:
    """
    >>> count_text(8030261248)
    '8.03B'
    >>> count_text(124439808)
    '124M'
    >>> count_text(5e12)
    '5T'
    """
    if parameters >= 0.9995e12:
        return f"{parameters / 1e12:.4g}T"
    if parameters >= 0.9995e9:
        return f"{parameters / 1e9:.4g}B"
    return f"{parameters / 1e6:.3g}M"


def gpt(name: str, layers: int, hidden: int, heads: int, origin: str, seq: int = 1024) -> ModelShape:
    """A GPT-2 or GPT-3: learned positions, LayerNorms, biases everywhere."""
    return ModelShape(
        layers, hidden, heads, heads, hidden // heads, 4 * hidden, 50257, name=name, family="gpt2", origin=origin,
        max_seq=seq, gated=False, tied=True, positions=seq, norm_bias=True, qkv_bias=True, out_bias=True, mlp_bias=True,
    )  # fmt: skip


def llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, seq: int, tied: bool = False
) -> ModelShape:
    """A Llama: rotary positions, a gated MLP, RMS norms, no biases."""
    return ModelShape(
        layers, hidden, heads, kv_heads, hidden // heads, ffn, vocab, name=name, family="llama",
        origin=f"{name}'s config.json", max_seq=seq, tied=tied,
    )  # fmt: skip
