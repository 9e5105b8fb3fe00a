"""The model of a size like "7b": published, or made to have it."""

from __future__ import annotations

import re

from msgspec.structs import replace

from gpudoctor.lazy import lazy_pattern
from gpudoctor.plan.model_shape import ModelError, ModelShape, count_text, gpt, llama

_SIZE = lazy_pattern(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([kmbt])", re.IGNORECASE | re.ASCII)
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
SMALLEST, LARGEST = 1e6, 5e12
_ALSO = {"117m": "124m", "125m": "124m", "355m": "350m", "760m": "774m", "1.6b": "1.5b", "33b": "30b"}
# Nominal sizes -> dimensions as published: the models' own config.json on Hugging Face, GPT-3's table 2.1
# (arXiv:2005.14165), MT-NLG (arXiv:2201.11990)
PUBLISHED: dict[str, ModelShape] = {
    "124m": gpt("GPT-2", 12, 768, 12, "GPT-2's config.json"),
    "350m": gpt("GPT-2 medium", 24, 1024, 16, "GPT-2 medium's config.json; GPT-3's table 2.1 calls these sizes 350M"),
    "774m": gpt("GPT-2 large", 36, 1280, 20, "GPT-2 large's config.json"),
    "1b": llama("Llama 3.2 1B", 16, 2048, 32, 8, 8192, 128256, 131072, tied=True),
    "1.5b": gpt("GPT-2 XL", 48, 1600, 25, "GPT-2 XL's config.json"),
    "3b": llama("Llama 3.2 3B", 28, 3072, 24, 8, 8192, 128256, 131072, tied=True),
    "7b": llama("Llama 2 7B", 32, 4096, 32, 32, 11008, 32000, 4096),
    "8b": llama("Llama 3.1 8B", 32, 4096, 32, 8, 14336, 128256, 131072),
    "13b": llama("Llama 2 13B", 40, 5120, 40, 40, 13824, 32000, 4096),
    "30b": llama("LLaMA 30B", 60, 6656, 52, 52, 17920, 32000, 2048),
    "34b": llama("Code Llama 34B", 48, 8192, 64, 8, 22016, 32000, 16384),
    "65b": llama("LLaMA 65B", 80, 8192, 64, 64, 22016, 32000, 2048),
    "70b": llama("Llama 3.1 70B", 80, 8192, 64, 8, 28672, 128256, 131072),
    "175b": gpt("GPT-3 175B", 96, 12288, 96, "GPT-3's table 2.1 (arXiv:2005.14165)", 2048),
    "405b": llama("Llama 3.1 405B", 126, 16384, 128, 8, 53248, 128256, 131072),
    "530b": gpt("MT-NLG 530B", 105, 20480, 128, "arXiv:2201.11990", 2048),
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
    hiddens = (*range(64, 2048, 64), *range(2048, 4096, 512), *range(4096, 65537, 1024))

    def score(made: ModelShape) -> float:
        return abs(made.parameters - parameters) / parameters + 0.05 * abs(made.hidden / made.layers - 128) / 128

    return min((_made(hidden, parameters, vocab) for hidden in hiddens), key=score)


def _made(hidden: int, parameters: float, vocab: int) -> ModelShape:
    head_dim = 128 if hidden >= 2048 else 64
    heads, ffn = hidden // head_dim, -(-8 * hidden // 3 // 256) * 256 or 256
    name, tied = f"{count_text(parameters)} made to size", parameters < 2e9
    made = llama(name, 2, hidden, heads, heads, ffn, vocab, 4096, tied=tied)
    rest = parameters - made.embedding_parameters - made.head_parameters
    origin = "no published model of this size is known here: Llama-like proportions"
    return replace(made, layers=max(round(rest / made.layer_parameters), 2), origin=origin)
