"""Ten steps under MirroredStrategy (devices of this process) or MultiWorkerMirroredStrategy (several processes).

Runs in a separate process that has imported nothing else before.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import time
from typing import Any

from gpudoctor.facts.model.measured_strategies import StrategyMemory, StrategyRank, StrategyReference
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.frameworks.isolated_child import AnswerWriter, Reference, TensorflowTask, Trained
from gpudoctor.probes.runner.merge import finite

MIRRORED, MULTI_WORKER = "mirrored", "multi-worker"
DRIFT = 0.01  # added to a weight of one replica by --inject desync
_CPU_PEAK = Missing("CPU ranks have no memory of their own")
_NO_ACTIVATIONS = Missing("TensorFlow does not tell it", "unsupported")


def train(task: TensorflowTask, answers: AnswerWriter) -> None:
    """Run the steps alone and under the strategy, and send the results of each replica of this process."""
    several = bool(task.ports)
    if several:
        workers = [f"127.0.0.1:{port}" for port in task.ports]
        place = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": task.worker}}
        os.environ["TF_CONFIG"] = json.dumps(place)
    answers.doing("import tensorflow")
    gc.disable()  # a third of the import time is garbage collection that finds nothing; this process lives for seconds
    import tensorflow as tf

    # TensorFlow enables TF32 by default, which would exceed the tolerances for fp32
    tf.config.experimental.enable_tensor_float_32_execution(False)
    variant = MULTI_WORKER if several else MIRRORED
    answers.doing(f"set up {variant}")
    strategy = _multi_worker(tf, task) if several else _mirrored(tf, task)
    replicas = len(task.ports) or task.replicas
    if strategy.num_replicas_in_sync != replicas:
        raise RuntimeError(f"the strategy has {strategy.num_replicas_in_sync} replicas where {replicas} were asked for")
    answers.doing("train alone")
    expected, reference = _alone(tf, task)
    if task.worker == 0:
        answers.send(Reference(str(tf.__version__), reference))
    answers.doing(f"train under {variant}")
    for rank in _under(tf, task, strategy, replicas, expected):
        answers.send(Trained(variant, rank))


def _mirrored(tf: Any, task: TensorflowTask) -> Any:
    if task.on_gpu:
        found = len(tf.config.list_physical_devices("GPU"))
        if found < task.replicas:
            raise NotImplementedError(f"TensorFlow opens {found} of {task.replicas} GPUs: env.frameworks says more")
        return tf.distribute.MirroredStrategy([f"/gpu:{number}" for number in range(task.replicas)])
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * task.replicas)
    return tf.distribute.MirroredStrategy([f"/cpu:{number}" for number in range(task.replicas)])


def _multi_worker(tf: Any, task: TensorflowTask) -> Any:
    if task.on_gpu and not tf.config.list_physical_devices("GPU"):
        raise NotImplementedError("TensorFlow opens no GPU: env.frameworks says more")
    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.NCCL if task.on_gpu else kinds.RING)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _alone(tf: Any, task: TensorflowTask) -> tuple[dict[str, Any], StrategyReference]:
    """The same steps on the whole batch in this process: final weights by name, and figures."""
    from gpudoctor.probes.frameworks.tensorflow_model import Adam, batch_of, initial_weights, loss_of

    with tf.device("/gpu:0" if task.on_gpu else "/cpu:0"):
        weights = {name: tf.Variable(value) for name, value in initial_weights(task.shape).items()}
        adam = Adam(weights, tf.Variable)

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
        memory=StrategyMemory(held, held, _bytes(adam.first) + _bytes(adam.second), _NO_ACTIVATIONS, _CPU_PEAK),
    )
    return {name: weight.numpy() for name, weight in weights.items()}, reference


def _under(tf: Any, task: TensorflowTask, strategy: Any, replicas: int, expected: dict[str, Any]) -> list[StrategyRank]:
    """Train under the strategy: the result of each replica of this process."""
    from gpudoctor.probes.frameworks.tensorflow_model import Adam, batch_of, initial_weights, loss_of

    with strategy.scope():
        weights = {name: tf.Variable(value) for name, value in initial_weights(task.shape).items()}
        adam = Adam(weights, tf.Variable)

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
        mine = {name: strategy.experimental_local_results(weight)[place].numpy() for name, weight in weights.items()}
        error, worst = _weights_error(mine, expected)
        peak = tf.config.experimental.get_memory_info(f"GPU:{place}")["peak"] if task.on_gpu else _CPU_PEAK
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
    for name, wanted in expected.items():
        off = float(abs(found[name] - wanted).max() / math.sqrt(float((wanted.astype("float64") ** 2).mean())))
        if not math.isfinite(off):
            return None, name
        errors[name] = off
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst


def _bytes(tensors: dict[str, Any]) -> int:
    return sum(4 * math.prod(tensor.shape) for tensor in tensors.values())
