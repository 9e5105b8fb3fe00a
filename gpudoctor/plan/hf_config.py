"""The shape of a model from its Hugging Face config.json."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor.plan.model_shape import ModelError, ModelShape, gpt
from gpudoctor.text.output import printable

MAX_BYTES = 4 * 2**20
_LARGEST = 10**8  # of any dimension: a larger one means a broken file
# keys of experts, latent attention, nested models and layers unlike the others: the dimensions beside them do not
# describe the model
_OTHER_SHAPES = (
    *("num_experts", "n_routed_experts", "num_local_experts", "kv_lora_rank", "text_config", "vision_config"),
    *("mlp_only_layers", "decoder_sparse_step"),
)
# of types with experts: the keys of their number and of the width of one
_EXPERT_KEYS = {
    "mixtral": ("num_local_experts", "intermediate_size"),
    "gpt_oss": ("num_local_experts", "intermediate_size"),
    "qwen3_moe": ("num_experts", "moe_intermediate_size"),
}
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", *_EXPERT_KEYS)
_CLASSIC = ("gpt2", "gpt_neox", "opt")
_KNOWN = (*_LLAMA_LIKE, *_CLASSIC)


def shape_of_config(path: Path) -> ModelShape:
    """The shape of the model that a config.json, or a folder with one, describes.

    Raises ModelError, one line with file and key, for a file that cannot be read, an unknown architecture and
    implausible numbers.
    """
    shown = printable(str(path))
    try:
        if path.is_dir():
            path = path / "config.json"
            shown = printable(str(path))
    except (OSError, ValueError):  # the name is too long, or the folder may not be entered
        raise ModelError(f"{shown[:80]}: neither a size (350m, 7b, 1.5b) nor a file") from None
    data = _read(path, shown)
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ModelError(f"{shown}: no JSON: {printable(str(error))}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{shown}: it must be a JSON object, as Hugging Face's config.json is")
    kind = raw.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{shown}: no `model_type`: is it the config.json of a Hugging Face model?")
    if kind not in _KNOWN:
        raise ModelError(
            f"{shown}: the architecture {printable(kind)[:60]!r} is not known; known are "
            f"{', '.join(sorted(_KNOWN))}. The nearest that works: the size alone, as in gpudoctor plan 7b"
        )
    allowed = _EXPERT_KEYS.get(kind, ())
    other = [key for key in _OTHER_SHAPES if key not in allowed and raw.get(key) not in (None, 0, 1, [])]
    if other:
        raise ModelError(
            f"{shown}: with the key {other[0]!r} this is no plain {kind} model, and there is no plan for it. The "
            "nearest that works: the size alone, as in gpudoctor plan 7b"
        )
    name = raw.get("_name_or_path")
    folder = path.resolve().parent.name
    called = printable(name if isinstance(name, str) and name else folder or kind)[:60]
    shape = (_classic if kind in _CLASSIC else _llama_like)(_Fields(raw, shown), kind)
    return _sensible(msgspec.structs.replace(shape, name=called, origin=shown), shown)


class _Fields:
    """Typed access to the keys of one config.json; errors name file and key."""

    def __init__(self, raw: Mapping[str, Any], shown: str) -> None:
        self._raw = raw
        self._shown = shown

    def number(self, *names: str, default: int | None = None) -> int:
        for name in names:
            value = self._raw.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
                expected = f"a whole number from 1 to {_LARGEST}"
                raise ModelError(f"{self._shown}: {name} is {value!r:.40}: it must be {expected}")
            return value
        if default is None:
            raise ModelError(f"{self._shown}: the key {names[0]!r} is missing")
        return default

    def switch(self, name: str, default: bool) -> bool:
        value = self._raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"{self._shown}: {name} is {value!r:.40}: it must be true or false")
        return value

    def head_dim(self, hidden: int, heads: int) -> int:
        """The key `head_dim`, else `hidden` / `heads`, which must divide evenly as in transformers."""
        if self._raw.get("head_dim") is not None:
            return self.number("head_dim")
        if hidden % heads:
            raise ModelError(f"{self._shown}: {heads} heads cannot share a hidden size of {hidden} evenly")
        return hidden // heads


def _read(path: Path, shown: str) -> bytes:
    try:
        # reading a FIFO or a device would never end
        if not path.is_file():
            if path.exists():
                raise ModelError(f"{shown}: not a file")
            raise ModelError(f"{shown}: neither a size (350m, 7b, 1.5b) nor a file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise ModelError(f"{shown}: more than {MAX_BYTES // 2**20} MiB: no config.json")
            return file.read(MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ModelError(f"{shown}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _sensible(shape: ModelShape, shown: str) -> ModelShape:
    if shape.heads % shape.kv_heads:
        raise ModelError(f"{shown}: {shape.heads} heads cannot share {shape.kv_heads} key-value heads")
    if shape.experts_per_token > shape.experts:
        raise ModelError(f"{shown}: {shape.experts_per_token} experts a token of {shape.experts}")
    if not 1e5 <= shape.parameters <= 1e14:
        raise ModelError(f"{shown}: {shape.parameters:.3g} parameters by its dimensions: that makes no sense")
    return shape


def _llama_like(fields: _Fields, kind: str) -> ModelShape:
    """Rotary positions, gated MLP, RMS norms; the types differ in biases, further norms and experts."""
    hidden, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    qwen2, gpt_oss = kind == "qwen2", kind == "gpt_oss"
    bias = fields.switch("attention_bias", False)
    experts, width = _EXPERT_KEYS.get(kind, (None, "intermediate_size"))
    mixtral = kind == "mixtral"  # its older files lack what has a default
    return ModelShape(
        name="",
        family=kind,
        origin="",
        layers=fields.number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.number("num_key_value_heads", default=heads),
        head_dim=fields.head_dim(hidden, heads),
        ffn=fields.number(width),
        vocab=fields.number("vocab_size"),
        max_seq=fields.number("max_position_embeddings", default=4096),
        tied=fields.switch("tie_word_embeddings", kind.startswith("gemma")),
        norms=4 if kind in ("gemma2", "gemma3_text") else 2,
        qk_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        qkv_bias=bias or qwen2,
        out_bias=bias and not qwen2,
        mlp_bias=fields.switch("mlp_bias", gpt_oss),
        experts=fields.number(experts, default=8 if mixtral else None) if experts else 1,
        experts_per_token=fields.number("num_experts_per_tok", default=2 if mixtral else None) if experts else 1,
        sinks=gpt_oss,
    )


def _classic(fields: _Fields, kind: str) -> ModelShape:
    """The GPT-2 kind: two MLP matrices, LayerNorms, biases everywhere."""
    gpt2, gpt_neox = kind == "gpt2", kind == "gpt_neox"
    hidden = fields.number("n_embd" if gpt2 else "hidden_size")
    heads = fields.number("n_head" if gpt2 else "num_attention_heads")
    ffn = {"gpt2": "n_inner", "gpt_neox": "intermediate_size", "opt": "ffn_dim"}[kind]
    positions = ("n_positions", "n_ctx") if gpt2 else ("max_position_embeddings",)
    seq = fields.number(*positions, default=2048 if gpt_neox else None)
    return msgspec.structs.replace(
        gpt("", fields.number("n_layer" if gpt2 else "num_hidden_layers"), hidden, heads, "", seq),
        family=kind,
        head_dim=fields.head_dim(hidden, heads),
        ffn=fields.number(ffn, default=4 * hidden if gpt2 else None),
        vocab=fields.number("vocab_size"),
        tied=fields.switch("tie_word_embeddings", not gpt_neox),
        # OPT keeps two rows of positions for padding
        positions=0 if gpt_neox else seq if gpt2 else seq + 2,
    )
