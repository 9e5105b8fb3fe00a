"""Ten steps of one small transformer under each parallel strategy: figures only, no verdicts."""

from typing import Literal

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing

Framework = Literal["torch", "tensorflow", "jax"]
FRAMEWORKS: tuple[Framework, ...] = ("torch", "tensorflow", "jax")


class StrategyShape(Fact, frozen=True):
    """The small transformer: `batch` is the global batch, in sequences of `sequence` tokens."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int


class StrategyMemory(Fact, frozen=True):
    """Memory of one rank in bytes, counted from the storages of its tensors.

    `activations_bytes`: the most that autograd kept for the backward pass at any time of one step. `peak_bytes`:
    torch's own peak (`torch.cuda.max_memory_allocated`); Missing on CPU ranks, for which torch does not count.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int | Missing = NOT_READ
    peak_bytes: int | Missing = NOT_READ


class StrategyRank(Fact, frozen=True):
    """One rank under one strategy.

    `losses`: of the part of the batch whose loss this rank computed, one per step; empty if it computes none (all
    but the last stage of a pipeline), with None for a loss that was not finite. `weights_error`: the maximum of
    |found - expected| / RMS(expected) over the elements of every tensor that it held at the end, RMS of that
    tensor; None: it was not finite. `compared`: the number of elements; `worst_weight`: the tensor's name.
    `expected_losses`: for each of `losses`, the loss of the same sequences on one rank alone; empty if the batch is
    not split into as many parts as there are ranks.
    `step_ms`: median of the steps, without the first and those that were counted. `communicated_bytes`: the sizes of
    the tensors given to collectives and sends in one step; Missing if they could not be counted.
    """

    rank: int
    losses: tuple[float | None, ...]
    weights_error: float | None
    compared: int
    memory: StrategyMemory
    step_ms: float
    worst_weight: str | None = None
    communicated_bytes: int | Missing = NOT_READ
    expected_losses: tuple[float | None, ...] = ()


class StrategyRun(Fact, frozen=True):
    """One variant of a strategy on all ranks that completed it, in rank order.

    `strategy` is the check's ("fsdp"), `variant` what was run ("fsdp", "fsdp-bf16"). `missing_weights`: names
    of tensors that no rank held at the end. `figures`: those of this strategy only, by name with unit ("bubble_share").
    """

    strategy: str
    variant: str
    dtype: Literal["fp32", "bf16"]
    ranks: tuple[StrategyRank, ...]
    missing_weights: tuple[str, ...] = ()
    figures: dict[str, float] = {}


class StrategyReference(Fact, frozen=True):
    """The same steps on one rank alone. Losses: one per step; none if a GPU has no bf16. Time and memory: of fp32."""

    parameters: int
    losses: tuple[float | None, ...]
    losses_bf16: tuple[float | None, ...]
    step_ms: float
    memory: StrategyMemory


class Strategies(Fact, frozen=True):
    """All strategies that were run. `not_run`: why a strategy (not a variant) has no figure, as in Measurements."""

    device: Literal["cuda", "cpu"]
    world_size: int
    shape: StrategyShape
    steps: int
    reference: StrategyReference
    runs: tuple[StrategyRun, ...] = ()
    not_run: dict[str, Missing] = {}


# Which GPUs each installed framework sees, queried in child processes


class FrameworkView(Fact, frozen=True):
    """The GPUs that one framework lists in a fresh process with the caller's environment.

    `gpu_build`: whether this build can use NVIDIA GPUs at all. `gpus`: how many it lists; `error` is its message
    when it could not open them. `uuids` in its order, if it reports them (only torch does). `held_back`: a
    setting of the caller that keeps it from the GPUs, as NAME=VALUE. `complaints`: what its libraries wrote
    about CUDA if it lists none. `left_out`: its message about each GPU that it opens but does not use
    (TensorFlow: too few multiprocessors, too old).
    """

    framework: Framework
    version: str
    gpu_build: bool | Missing = NOT_READ
    gpus: int | Missing = NOT_READ
    uuids: tuple[str, ...] | Missing = NOT_READ
    error: str | None = None
    held_back: str | None = None
    complaints: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class LibraryStrategies(Fact, frozen=True):
    """Results of the strategies of a library other than torch: `strategies` like those of torch, by variant."""

    library: str
    version: str
    strategies: Strategies
