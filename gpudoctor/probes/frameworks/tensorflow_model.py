"""The small transformer and its optimizer in plain TensorFlow: Keras 3 does not support several workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from gpudoctor.facts.model.measured_strategies import StrategyShape

LEARNING_RATE = 1e-3
# With Adam's default of 1e-8 a gradient of mere rounding errors makes a step of full length: a false alarm
EPSILON = 1e-3
_BETA_1, _BETA_2 = 0.9, 0.999
_SEED = 31

Weights = dict[str, Any]  # name to tf.Variable


def initial_weights(shape: StrategyShape) -> dict[str, Any]:
    """The initial weights by name, fp32; equal in every process."""
    random = np.random.RandomState(_SEED)
    width = shape.width

    def normal(*size: int) -> Any:
        return (random.standard_normal(size) / math.sqrt(size[0])).astype(np.float32)

    weights = {"embed": normal(shape.vocabulary, width), "place": normal(shape.sequence, width)}
    for layer in range(shape.layers):
        for name in ("query", "key", "value", "out"):
            weights[f"{layer}.{name}"] = normal(width, width)
        weights[f"{layer}.up"], weights[f"{layer}.down"] = normal(width, 4 * width), normal(4 * width, width)
    return weights | {"head": normal(width, shape.vocabulary)}


def batch_of(shape: StrategyShape, step: int, part: int = 0, parts: int = 1) -> tuple[Any, Any]:
    """Tokens and targets, (batch / parts, sequence) int32 each: part `part` of the batch of a step (from 0).

    The target is a fixed function of the token, so that even ten steps begin to learn it.
    """
    random = np.random.RandomState(_SEED + 1 + step)
    tokens = random.randint(shape.vocabulary, size=(shape.batch, shape.sequence)).astype(np.int32)
    size = shape.batch // parts
    own = tokens[part * size : (part + 1) * size]
    return own, (3 * own + 1) % shape.vocabulary


def loss_of(shape: StrategyShape, weights: Weights, tokens: Any, targets: Any) -> Any:
    """The mean cross entropy over all tokens of (batch, sequence): a scalar."""
    # products with one-hot rows instead of lookups keep gradients dense, so that every strategy reduces them alike
    hidden = tf.matmul(tf.one_hot(tokens, shape.vocabulary), weights["embed"]) + weights["place"]
    for layer in range(shape.layers):
        hidden += _attention(shape, {n: weights[f"{layer}.{n}"] for n in ("query", "key", "value", "out")}, hidden)
        hidden += tf.matmul(tf.nn.gelu(tf.matmul(_norm(hidden), weights[f"{layer}.up"])), weights[f"{layer}.down"])
    logits = tf.matmul(_norm(hidden), weights["head"])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))


def _norm(hidden: Any) -> Any:
    mean, variance = tf.nn.moments(hidden, axes=[-1], keepdims=True)
    return (hidden - mean) * tf.math.rsqrt(variance + 1e-5)


def _attention(shape: StrategyShape, weights: Weights, hidden: Any) -> Any:
    """Causal attention on (batch, sequence, width), without biases: the gradient of the key's is mere rounding."""
    normed, head_width = _norm(hidden), shape.width // shape.heads

    def heads(name: str) -> Any:
        apart = tf.reshape(tf.matmul(normed, weights[name]), (-1, shape.sequence, shape.heads, head_width))
        return tf.transpose(apart, (0, 2, 1, 3))

    scores = tf.matmul(heads("query"), heads("key"), transpose_b=True) / math.sqrt(head_width)
    causal = np.triu(np.full((shape.sequence, shape.sequence), -1e9, np.float32), 1)
    mixed = tf.matmul(tf.nn.softmax(scores + causal), heads("value"))
    return tf.matmul(tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (-1, shape.sequence, shape.width)), weights["out"])


class Adam:
    """Adam with bias correction (arXiv:1412.6980, algorithm 1); `variable` creates its state in the current scope."""

    def __init__(self, weights: Weights, variable: Callable[[Any], Any]) -> None:
        self.first = {name: variable(np.zeros(weight.shape, np.float32)) for name, weight in weights.items()}
        self.second = {name: variable(np.zeros(weight.shape, np.float32)) for name, weight in weights.items()}

    @staticmethod
    def update(weight: Any, gradient: Any, first: Any, second: Any, step: Any) -> None:
        """Update one tensor in step `step`, counted from 1."""
        first.assign(_BETA_1 * first + (1 - _BETA_1) * gradient)
        second.assign(_BETA_2 * second + (1 - _BETA_2) * tf.square(gradient))
        mean, square = first / (1 - tf.pow(_BETA_1, step)), second / (1 - tf.pow(_BETA_2, step))
        weight.assign_sub(LEARNING_RATE * mean / (tf.sqrt(square) + EPSILON))
