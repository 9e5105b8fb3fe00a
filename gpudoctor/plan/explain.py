"""Every formula with its source, taken from the docstring of the function that computes it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc

from gpudoctor.plan import activations, choose, communication, known_models, memory, precision, settings, strategies

FORMULAS: tuple[tuple[str, Callable[..., object]], ...] = (
    ("Shape of an unpublished size", known_models.made_shape),
    ("Bytes of weights, gradients and optimizer", precision.state_bytes),
    ("Optimizer states", precision.optimizer_bytes),
    ("Sharding", memory.sharded_states),
    ("Parameters of a pipeline stage", memory.stage_parameters),
    ("Gradients at the peak", memory.gradients_persist),
    ("Activations of one layer", activations.layer_bytes),
    ("Activations with recomputation", activations.kept_bytes),
    ("Gradients of activations", activations.backward_bytes),
    ("Activations of a stage", memory.activation_parts),
    ("The loss", activations.loss_bytes),
    ("What FSDP gathers", memory.gathered_parts),
    ("Memory of a GPU", memory.memory_of),
    ("Choice", choose.choose),
    ("Tensor-parallel ranks", strategies.tensor_divides),
    ("Traffic of a step", communication.traffic_of),
    ("Time of a step", communication.step_time),
    ("Learning rate", settings.learning_rates),
    ("Bucket size", settings.bucket_of),
    ("Settings to use", settings.wanted_settings),
    ("Settings to avoid", settings.harmful_settings),
)


def formulas() -> tuple[str, ...]:
    """Each formula as text: a heading, then its docstring, which is missing under python -OO."""
    lost = "not kept by this interpreter (-OO)"
    return tuple(f"{title}\n{cleandoc(function.__doc__ or lost)}" for title, function in FORMULAS)
