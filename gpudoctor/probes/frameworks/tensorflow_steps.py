"""Ten steps under MirroredStrategy (devices of this process) or MultiWorkerMirroredStrategy (several processes).

The small transformer and its optimizer are in plain TensorFlow: Keras 3 does not support several workers. Runs in a
separate process, with TF_CONFIG set before this module is imported.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import numpy as np
import tensorflow as tf

from gpudoctor.facts.model.measured_strategies import StrategyMemory, StrategyRank, StrategyReference, StrategyShape
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.frameworks.isolated_child import AnswerWriter, TensorflowTask
from gpudoctor.probes.runner.merge import finite
from gpudoctor.probes.runner.messages import CPU_MEMORY

DRIFT = 0.01  # added to a weight of one replica by --inject desync
_NO_ACTIVATIONS = Missing("TensorFlow does not tell it", "unsupported")
LEARNING_RATE = 1e-3
# With Adam's default of 1e-8 a gradient of mere rounding errors makes a step of full length: a false alarm
EPSILON = 1e-3
_BETA_1, _BETA_2 = 0.9, 0.999
_SEED = 31

Weights = dict[str, Any]  # name to tf.Variable


def train(task: TensorflowTask, answers: AnswerWriter) -> None:
    """Run the steps alone and under the strategy, and send the results of each replica of this process."""
    # TensorFlow enables TF32 by default, which would exceed the tolerances for fp32
    tf.config.experimental.enable_tensor_float_32_execution(False)
    variant = "multi-worker" if task.ports else "mirrored"
    answers.doing(f"set up {variant}")
    strategy = _multi_worker(task) if task.ports else _mirrored(task)
    replicas = len(task.ports) or task.replicas
    if strategy.num_replicas_in_sync != replicas:
        raise RuntimeError(f"the strategy has {strategy.num_replicas_in_sync} replicas where {replicas} were asked for")
    answers.doing("train alone")
    expected, reference = _alone(task)
    if task.worker == 0:
        answers.found(version=str(tf.__version__), reference=reference)
    answers.doing(f"train under {variant}")
    answers.found(ranks=tuple(_under(task, strategy, replicas, expected)))


def _mirrored(task: TensorflowTask) -> Any:
    if task.on_gpu:
        found = len(tf.config.list_physical_devices("GPU"))
        if found < task.replicas:
            raise NotImplementedError(f"TensorFlow opens {found} of {task.replicas} GPUs: env.frameworks says more")
        return tf.distribute.MirroredStrategy([f"/gpu:{number}" for number in range(task.replicas)])
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * task.replicas)
    return tf.distribute.MirroredStrategy([f"/cpu:{number}" for number in range(task.replicas)])


def _multi_worker(task: TensorflowTask) -> Any:
    if task.on_gpu and not tf.config.list_physical_devices("GPU"):
        raise NotImplementedError("TensorFlow opens no GPU: env.frameworks says more")
    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.NCCL if task.on_gpu else kinds.RING)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _alone(task: TensorflowTask) -> tuple[dict[str, Any], StrategyReference]:
    """The same steps on the whole batch in this process: final weights by name, and figures."""
    with tf.device("/gpu:0" if task.on_gpu else "/cpu:0"):
        weights = initial_weights(task.shape)
        adam = Adam(weights)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def step(tokens: Any, targets: Any, number: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(task.shape, weights, tokens, targets)
            gradients = tape.gradient(loss, weights)
            for name, weight in weights.items():
                Adam.update(weight, gradients[name], adam.first[name], adam.second[name], number)
            return loss

        losses, times_ms = [], []
        for number in range(task.steps):
            began = time.perf_counter()
            batch = batch_of(task.shape, number)
            losses.append(finite(float(step(*map(tf.constant, batch), tf.constant(number + 1.0)))))
            times_ms.append((time.perf_counter() - began) * 1e3)
    held = _bytes(weights)
    reference = StrategyReference(
        parameters=held // 4,
        losses=tuple(losses),
        losses_bf16=(),
        step_ms=statistics.median(times_ms[1:]),
        memory=StrategyMemory(held, held, _bytes(adam.first) + _bytes(adam.second), _NO_ACTIVATIONS, CPU_MEMORY),
    )
    return {name: weight.numpy() for name, weight in weights.items()}, reference


def _under(task: TensorflowTask, strategy: Any, replicas: int, expected: dict[str, Any]) -> list[StrategyRank]:
    """Train under the strategy: the result of each replica of this process."""
    with strategy.scope():
        weights = initial_weights(task.shape)
        adam = Adam(weights)

    def apply(strategy: Any, gradients: dict[str, Any], number: Any) -> None:
        for name, weight in weights.items():
            slots = (gradients[name], adam.first[name], adam.second[name], number)
            strategy.extended.update(weight, Adam.update, args=slots, group=False)

    def replica(tokens: Any, targets: Any, number: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(task.shape, weights, tokens, targets)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, weights))
        context.merge_call(apply, args=(gradients, number))
        return loss

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(tokens: Any, targets: Any, number: Any) -> Any:
        return strategy.run(replica, args=(tokens, targets, number))

    def own(number: int, which: int) -> Any:
        def part(context: Any) -> Any:
            index = task.worker if task.ports else context.replica_id_in_sync_group
            return tf.constant(batch_of(task.shape, number, index, replicas)[which])

        return strategy.experimental_distribute_values_from_function(part)

    if task.on_gpu:  # otherwise the peak would include the steps alone
        for place in range(len(tf.config.list_logical_devices("GPU"))):
            tf.config.experimental.reset_memory_stats(f"GPU:{place}")
    losses: list[list[float | None]] = []
    times_ms = []
    for number in range(task.steps):
        began = time.perf_counter()
        found = strategy.experimental_local_results(step(own(number, 0), own(number, 1), tf.constant(number + 1.0)))
        losses.append([finite(float(loss)) for loss in found])
        times_ms.append((time.perf_counter() - began) * 1e3)
        drifting = None if task.desync is None else task.desync - task.worker
        if drifting is not None and number == task.steps // 2 and 0 <= drifting < len(found):
            strategy.experimental_local_results(weights["head"])[drifting].assign_add(
                tf.fill(weights["head"].shape, DRIFT)
            )
    held, slots = _bytes(expected), 2 * _bytes(expected)
    ranks = []
    for place in range(len(losses[0])):
        trained = {name: strategy.experimental_local_results(weight)[place].numpy() for name, weight in weights.items()}
        error, worst = _weights_error(trained, expected)
        peak = tf.config.experimental.get_memory_info(f"GPU:{place}")["peak"] if task.on_gpu else CPU_MEMORY
        ranks.append(
            StrategyRank(
                rank=task.worker + place,
                losses=tuple(step_losses[place] for step_losses in losses),
                weights_error=error,
                compared=held // 4,
                memory=StrategyMemory(held, held, slots, _NO_ACTIVATIONS, peak),
                step_ms=statistics.median(times_ms[1:]),
                worst_weight=worst,
                communicated_bytes=held,  # the input of all_reduce: every gradient in fp32
            )
        )
    return ranks


def _weights_error(found: dict[str, Any], expected: dict[str, Any]) -> tuple[float | None, str | None]:
    """The maximum of |found - expected| / RMS(expected) over all tensors (None if not finite), and the tensor."""
    errors = {}
    for name, requested in expected.items():
        off = float(abs(found[name] - requested).max() / math.sqrt(float((requested.astype("float64") ** 2).mean())))
        if not math.isfinite(off):
            return None, name
        errors[name] = off
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst


def _bytes(tensors: dict[str, Any]) -> int:
    return sum(4 * math.prod(tensor.shape) for tensor in tensors.values())


def initial_weights(shape: StrategyShape) -> Weights:
    """New variables by name, fp32, in the current scope; equal in every process."""
    random = np.random.RandomState(_SEED)
    width = shape.width

    def normal(*size: int) -> Any:
        return tf.Variable((random.standard_normal(size) / math.sqrt(size[0])).astype(np.float32))

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
    """Adam with bias correction (arXiv:1412.6980, algorithm 1); its state is created in the current scope."""

    def __init__(self, weights: Weights) -> None:
        self.first, self.second = (
            {name: tf.Variable(np.zeros(weight.shape, np.float32)) for name, weight in weights.items()}
            for _ in range(2)
        )

    @staticmethod
    def update(weight: Any, gradient: Any, first: Any, second: Any, step: Any) -> None:
        """Update one tensor in step `step`, counted from 1."""
        first.assign(_BETA_1 * first + (1 - _BETA_1) * gradient)
        second.assign(_BETA_2 * second + (1 - _BETA_2) * tf.square(gradient))
        mean, square = first / (1 - tf.pow(_BETA_1, step)), second / (1 - tf.pow(_BETA_2, step))
        weight.assign_sub(LEARNING_RATE * mean / (tf.sqrt(square) + EPSILON))
