"""Bytes that a training keeps: of weights, gradients and optimizer states a parameter, of activations a token."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.plan.model_shape import ModelShape

Precision = Literal["bf16", "fp16", "fp32", "bf16-true"]
Optimizer = Literal["adamw", "adamw-8bit", "momentum", "lion", "sgd"]

# autocast: DDP with fp32 weights; sharded: FSDP2 with fp32 shards; zero: DeepSpeed; megatron: bf16 weights and fp32
# gradients
Engine = Literal["autocast", "sharded", "zero", "megatron"]

_STATES = {"adamw": 2, "adamw-8bit": 2, "momentum": 1, "lion": 1, "sgd": 0}
Recompute = Literal["none", "selective", "full"]
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")  # each keeps less and computes more


class StateBytes(msgspec.Struct, frozen=True):
    """Bytes per parameter; `optimizer` includes a master copy if the weights are 16 bits wide."""

    weights: float
    gradients: float
    optimizer: float


def compute_bytes(precision: Precision) -> int:
    """Bytes of one activation value, and of one weight as the matrix products read it."""
    return 4 if precision == "fp32" else 2


def optimizer_bytes(optimizer: Optimizer, precision: Precision) -> float:
    """Optimizer states: bytes a parameter, without master weights.

    Formula: adamw 2 states, momentum and lion 1, sgd none; 4 bytes each, 2 with bf16-true (PyTorch makes
    states in the parameter's own type), 1 for adamw-8bit.
    Source: ZeRO (arXiv:1910.02054) section 3.1; torch.optim.AdamW; bitsandbytes (arXiv:2110.02861); Lion
    (arXiv:2302.06675).
    """
    each = 1 if optimizer == "adamw-8bit" else 2 if precision == "bf16-true" else 4
    return _STATES[optimizer] * each


def state_bytes(engine: Engine, precision: Precision, optimizer: Optimizer) -> StateBytes:
    """Weights, gradients and optimizer states: bytes a parameter, before any sharding.

    Formula, mixed precision with AdamW:
    autocast (DDP): fp32 weight 4 + its cached 16-bit copy 2, gradient 4, states 8: 18.
    sharded (FSDP2): fp32 shard 4, gradient 4, states 8: 16; the 16-bit copies are gathered layer by layer.
    zero (DeepSpeed): 16-bit weight 2, gradient 2, fp32 master 4 + states 8: 16.
    megatron: 16-bit weight 2, fp32 gradient 4, fp32 master 4 + states 8: 18.
    fp32: 4 + 4 + states. bf16-true: 2 + 2 + states.
    Source: ZeRO (arXiv:1910.02054) section 3.1 (16 bytes); Hugging Face transformers, "Model training
    anatomy" (6 + 4 + 8 with autocast); PyTorch, FSDP2 `MixedPrecisionPolicy`; Megatron-LM, "Distributed
    Optimizer" (18, and 6 + 12/d sharded).
    """
    states = optimizer_bytes(optimizer, precision)
    if precision == "fp32":
        return StateBytes(4, 4, states)
    if precision == "bf16-true":
        return StateBytes(2, 2, states)
    if engine == "autocast":
        return StateBytes(6, 4, states)
    if engine == "sharded":
        return StateBytes(4, 4, states)
    return StateBytes(2, 2 if engine == "zero" else 4, 4 + states)


class Kernels(msgspec.Struct, frozen=True):
    """How the layers are computed, as far as it affects what is kept.

    `flash`: attention without its s x s scores (scaled_dot_product_attention, flash attention).
    `dropout`: two masks a layer are kept. `autocast`: weights are fp32, and torch.autocast casts for each product.
    `bf16_loss`: with bf16-true, the loss is computed on the logits as they are; most libraries copy them to fp32.
    """

    flash: bool = True
    dropout: bool = False
    autocast: bool = False
    bf16_loss: bool = False


def _residual_bytes(precision: Precision, kernels: Kernels) -> int:
    """One value of the sum that runs through all layers; fp32 embeddings make it fp32 under autocast."""
    return 4 if kernels.autocast else compute_bytes(precision)


def layer_bytes(shape: ModelShape, precision: Precision, seq: int, kernels: Kernels) -> float:
    """One layer without recomputation: bytes a token.

    Formula: 2 R h + E * (c h + 2q + 2k + m f), with E bytes a value, R bytes a value of the residual sum, h
    hidden, q and k the widths of queries and keys, f the MLP's width times the experts that process a token,
    m = 4 for a gated MLP (gate, its activation, up, product) and 2 for a plain one. R = E and c = 2 (the outputs
    of the two norms). With autocast R = 4, and each product keeps its own 16-bit copy of its input: c = 5 for a
    gated MLP (query, key, value, gate, up), 4 for a plain one. Norms of query and key keep their inputs, + E (q + k),
    and so do norms behind attention and MLP, + 2 E h. Each of the x experts that process a token keeps a copy of its
    input, and its output for the weighted sum: + 2 E x h. With dropout + 2h; without flash attention
    + (2E + 1) a s for softmax, dropped-out softmax and mask, a heads, s sequence.
    For GPT (q = k = h, f = 4h, E = 2) this is 32h, 40h with autocast, and 34h + 5as with dropout and without
    flash attention.
    Source: Korthikanti et al. (arXiv:2205.05198) section 4.1, "sbh (34 + 5as/h)", with grouped-query
    attention and gated MLP put in; autocast: torch's type promotion, and casts of activations are not cached.
    """
    width = compute_bytes(precision)
    h, q, k = shape.hidden, shape.query_width, shape.kv_width
    f = shape.ffn * shape.experts_per_token
    inputs = 2 if not kernels.autocast else 5 if shape.gated else 4
    values = inputs * h + 2 * q + 2 * k + (4 if shape.gated else 2) * f
    values += (shape.norms - 2) * h + (q + k if shape.qk_norm else 0)
    values += 2 * shape.experts_per_token * h if shape.experts > 1 else 0
    masks = 2 * h if kernels.dropout else 0
    scores = 0 if kernels.flash else (2 * width + 1) * shape.heads * seq
    return 2 * _residual_bytes(precision, kernels) * h + width * values + masks + scores


def kept_bytes(shape: ModelShape, precision: Precision, seq: int, kernels: Kernels, recompute: Recompute) -> float:
    """What one layer keeps until its backward pass: bytes a token.

    Formula: none: all of it. full: the layer's input, R h. selective: input, attention output and every
    second matrix product, R h + E * (h + 2q + k + f). R is 4 with autocast, else E.
    Source: Korthikanti et al. (arXiv:2205.05198) section 5 ("full": 2sbh a layer); PyTorch selective
    activation checkpointing with torchtitan's policy "op" (saves attention and every second mm).
    """
    width, residual = compute_bytes(precision), _residual_bytes(precision, kernels) * shape.hidden
    if recompute == "full":
        return residual
    whole = layer_bytes(shape, precision, seq, kernels)
    if recompute == "none":
        return whole
    f = shape.ffn * shape.experts_per_token
    return min(whole, residual + width * (shape.hidden + 2 * shape.query_width + shape.kv_width + f))


def backward_bytes(shape: ModelShape, precision: Precision, kernels: Kernels) -> float:
    """The gradients that the backward pass of one layer holds beside what the layer has kept: bytes a token.

    Formula: E g f + R h, with g = 2 for a gated MLP and 1 for a plain one, R as in `layer_bytes`: the gradient of
    the layer's output, and at the MLP's activation those of the product and of its two factors, when the
    product itself is free again.
    Source: torch.autograd, by the tensors that the backward pass of such an MLP holds at a time.
    """
    f = shape.ffn * shape.experts_per_token
    gradients = compute_bytes(precision) * (2 if shape.gated else 1) * f
    return gradients + _residual_bytes(precision, kernels) * shape.hidden


def loss_bytes(shape: ModelShape, precision: Precision, tensor: int, kernels: Kernels) -> float:
    """The largest moment of the loss: bytes a token.

    Formula: (3 W + E) v: log-softmax, its gradient, the logits' gradient and the logits, v vocabulary; W is 4
    bytes, because the loss is computed in fp32. Split over t ranks (loss parallel):
    (4 W + E) v / t, because the exponentials are then a separate tensor.
    Source: torch.nn.functional.cross_entropy and torch.distributed.tensor.parallel.loss_parallel, by the
    tensors that their forward and backward pass hold at a time; 4sbv of Korthikanti et al. is the first.
    """
    wide = 2 if kernels.bf16_loss else 4
    copies = 3 if tensor == 1 else 4
    return (copies * wide + compute_bytes(precision)) * shape.vocab / tensor
