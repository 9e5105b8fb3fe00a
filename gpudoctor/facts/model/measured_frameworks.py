"""What the frameworks installed beside each other see of the GPUs: asked in child processes, judged elsewhere."""

from __future__ import annotations

from typing import Literal

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.measured_strategies import Strategies
from gpudoctor.facts.model.missing import NOT_READ, Missing

Framework = Literal["torch", "tensorflow", "jax"]
FRAMEWORKS: tuple[Framework, ...] = ("torch", "tensorflow", "jax")


class FrameworkView(Fact, frozen=True):
    """What one framework says of the GPUs in a fresh process with the caller's own environment.

    `gpu_build`: whether this build can use NVIDIA GPUs at all. `gpus`: how many it lists; `error` is what it said
    when it could not open them. `uuids` in its order, where it tells them (torch alone does). `held_back`: a
    setting of the caller's that keeps it from the GPUs, as NAME=VALUE. `complaints`: what its libraries wrote
    about CUDA where it lists none. `left_out`: of each GPU that it opens and leaves out by a rule of its own, its
    own line (TensorFlow: too few multiprocessors, too old).
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
    """What the strategies of a library beside torch gave: `strategies` as those of torch, by variant."""

    library: str
    version: str
    strategies: Strategies
