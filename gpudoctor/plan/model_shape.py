"""The dimensions of a decoder-only transformer, and the model for a size like "7b": published or made to have it."""

from __future__ import annotations

import re
from functools import lru_cache

from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_pattern
from gpudoctor.probes.plan_verification.messages import TransformerShape

DEFAULT_SEQ = 4096
_SIZE = lazy_pattern(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([kmbt])", re.IGNORECASE | re.ASCII)
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
SMALLEST, LARGEST = 1e6, 5e12
_ALSO = {"117m": "124m", "125m": "124m", "355m": "350m", "760m": "774m", "1.6b": "1.5b", "33b": "30b"}


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


def _gpt(name: str, layers: int, hidden: int, heads: int, origin: str, seq: int = 1024) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, heads, hidden // heads, 4 * hidden, 50257, name=name, family="gpt2", origin=origin,
        max_seq=seq, gated=False, tied=True, positions=seq, norm_bias=True, qkv_bias=True, out_bias=True, mlp_bias=True,
    )  # fmt: skip


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, seq: int, tied: bool = False
) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, kv_heads, hidden // heads, ffn, vocab, name=name, family="llama",
        origin=f"{name}'s config.json", max_seq=seq, tied=tied,
    )  # fmt: skip


# Nominal sizes -> dimensions as published: the models' own config.json on Hugging Face, GPT-3's table 2.1
# (arXiv:2005.14165), MT-NLG (arXiv:2201.11990)
PUBLISHED: dict[str, ModelShape] = {
    "124m": _gpt("GPT-2", 12, 768, 12, "GPT-2's config.json"),
    "350m": _gpt("GPT-2 medium", 24, 1024, 16, "GPT-2 medium's config.json; GPT-3's table 2.1 calls these sizes 350M"),
    "774m": _gpt("GPT-2 large", 36, 1280, 20, "GPT-2 large's config.json"),
    "1b": _llama("Llama 3.2 1B", 16, 2048, 32, 8, 8192, 128256, 131072, tied=True),
    "1.5b": _gpt("GPT-2 XL", 48, 1600, 25, "GPT-2 XL's config.json"),
    "3b": _llama("Llama 3.2 3B", 28, 3072, 24, 8, 8192, 128256, 131072, tied=True),
    "7b": _llama("Llama 2 7B", 32, 4096, 32, 32, 11008, 32000, 4096),
    "8b": _llama("Llama 3.1 8B", 32, 4096, 32, 8, 14336, 128256, 131072),
    "13b": _llama("Llama 2 13B", 40, 5120, 40, 40, 13824, 32000, 4096),
    "30b": _llama("LLaMA 30B", 60, 6656, 52, 52, 17920, 32000, 2048),
    "34b": _llama("Code Llama 34B", 48, 8192, 64, 8, 22016, 32000, 16384),
    "65b": _llama("LLaMA 65B", 80, 8192, 64, 64, 22016, 32000, 2048),
    "70b": _llama("Llama 3.1 70B", 80, 8192, 64, 8, 28672, 128256, 131072),
    "175b": _gpt("GPT-3 175B", 96, 12288, 96, "GPT-3's table 2.1 (arXiv:2005.14165)", 2048),
    "405b": _llama("Llama 3.1 405B", 126, 16384, 128, 8, 53248, 128256, 131072),
    "530b": _gpt("MT-NLG 530B", 105, 20480, 128, "arXiv:2201.11990", 2048),
}


def is_size(text: str) -> bool:
    """Whether the text has the form of a size, plausible or not."""
    return _SIZE.fullmatch(text.strip()) is not None


def shape_of_size(text: str) -> ModelShape:
    """The model of a size like 350m, 7b or 1.5b. Raises ModelError for a size outside 1m to 5t.

    If no published model in the table has this size, the shape is constructed (`made_shape`).
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ModelError(f"{text!r} is no size: write 350m, 7b or 1.5b, or give the path of a config.json")
    parameters = float(found[1]) * _UNITS[found[2].lower()]
    if not SMALLEST <= parameters <= LARGEST:
        nearest = "1m" if parameters < SMALLEST else "5t"
        raise ModelError(f"{text}: a model must have 1m to 5t parameters; the nearest is {nearest}")
    key = f"{float(found[1]):g}{found[2].lower()}"
    shape = PUBLISHED.get(_ALSO.get(key, key))
    return shape if shape is not None else made_shape(parameters)


def made_shape(parameters: float) -> ModelShape:
    """A Llama-like shape of about so many parameters, for a size without a published model.

    Formula: heads of 128 (of 64 below a hidden size of 2048) and an even number of them, eight or more
    from 4096 on, so that tensor parallelism can split them; ffn 8/3 of hidden rounded up to 256; vocabulary
    32000 (4096 below 20 million); of all pairs of layers and hidden the one with the nearest number of
    parameters and hidden / layers near 128.
    Source: LLaMA's table 2 (arXiv:2302.13971: 128 for 7B and 13B, 102 for 65B).
    """
    vocab = 32000 if parameters >= 2e7 else 4096
    best: tuple[float, ModelShape] | None = None
    for hidden in (*range(64, 2048, 64), *range(2048, 4096, 512), *range(4096, 65537, 1024)):
        made = _made(2, hidden, parameters, vocab)
        rest = parameters - made.embedding_parameters - made.head_parameters
        layers = max(round(rest / made.layer_parameters), 2)
        made = _made(layers, hidden, parameters, vocab)
        miss = abs(made.parameters - parameters) / parameters
        score = miss + 0.05 * abs(hidden / layers - 128) / 128
        if best is None or score < best[0]:
            best = (score, made)
    assert best is not None
    return best[1]


def _made(layers: int, hidden: int, parameters: float, vocab: int) -> ModelShape:
    head_dim = 128 if hidden >= 2048 else 64
    heads = hidden // head_dim
    ffn = -(-8 * hidden // 3 // 256) * 256 or 256
    name = f"{count_text(parameters)} made to size"
    origin = "no published model of this size is known here: Llama-like proportions"
    tied = parameters < 2e9
    return ModelShape(
        layers, hidden, heads, heads, head_dim, ffn, vocab, name=name, family="llama", origin=origin, max_seq=4096,
        tied=tied,
    )  # fmt: skip
