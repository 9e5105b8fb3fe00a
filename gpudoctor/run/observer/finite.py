"""Whether loss and gradients are finite, without making the training wait.

On the CPU the loss of every backward is looked at, and of steps that are timed as many gradients as cost less than
0.05 % of the time. On a GPU they are kept, and read on another stream once the GPU has passed the step.
"""

from __future__ import annotations

import math
import sys
from time import monotonic_ns
from typing import Any

NOT_SEEN, NOT_FINITE, FINITE = -1.0, 0.0, 1.0
_SHARE = 0.0005
_MOST_A_STEP = 4
_MOST_SAVED_NS = 100_000.0  # of time without steps, as in an evaluation
_PARAMETERS_AGAIN = 256


class FiniteChecks:
    """What was seen of the step that runs now."""

    _stream: Any = None

    def __init__(self) -> None:
        self.loss = NOT_SEEN
        self.gradients = NOT_SEEN
        self._on_gpu: list[tuple[bool, Any]] = []
        self._parameters: list[Any] = []
        self._next = 0
        self._calls = 0
        self._last = monotonic_ns()
        self._may_spend_ns = 0.0

    def look_at_loss(self, tensor: Any, timed: bool) -> None:
        """Look at what backward begins with, if it is one number; that of a GPU is read with a timed step."""
        torch = sys.modules["torch"]
        if type(tensor) is not torch.Tensor or tensor.numel() != 1 or not tensor.is_floating_point():
            return
        if tensor.device.type == "cpu":
            ok = math.isfinite(tensor.item())
            self.loss = FINITE if ok and self.loss != NOT_FINITE else NOT_FINITE
        elif timed and tensor.is_cuda and not torch.cuda.is_current_stream_capturing():
            self._on_gpu.append((True, tensor.detach()))

    def look_at_gradients(self, optimizer: Any) -> None:
        """Look at some gradients that the optimizer is about to apply: others in each step."""
        now = monotonic_ns()
        self._may_spend_ns = min(self._may_spend_ns + (now - self._last) * _SHARE, _MOST_SAVED_NS)
        self._last = now
        if self._calls % _PARAMETERS_AGAIN == 0:
            self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._calls += 1
        for _ in range(_MOST_A_STEP):
            if not self._parameters or self._may_spend_ns <= 0:
                return
            self._next = (self._next + 1) % len(self._parameters)
            gradient = self._parameters[self._next].grad
            if gradient is not None:
                self._look(gradient)
            began, now = now, monotonic_ns()
            self._may_spend_ns -= now - began

    def _look(self, gradient: Any) -> None:
        torch = sys.modules["torch"]
        local = getattr(gradient, "_local_tensor", gradient)  # of a DTensor
        if not local.is_floating_point() or not local.numel() or local.layout != torch.strided:
            return
        with torch.no_grad():
            largest = torch.linalg.vector_norm(local.detach(), math.inf)  # a sum could overflow
            if local.device.type == "cpu":
                ok = math.isfinite(largest.item())
                self.gradients = FINITE if ok and self.gradients != NOT_FINITE else NOT_FINITE
            elif local.is_cuda and not torch.cuda.is_current_stream_capturing():
                self._on_gpu.append((False, largest))

    def next_step(self) -> None:
        """The step has ended."""
        self.loss = self.gradients = NOT_SEEN
        if self._on_gpu:
            self._on_gpu = []

    def handed_over(self) -> FiniteChecks:
        """What is to be read once the GPU has passed the step."""
        taken = FiniteChecks()
        taken.loss, taken.gradients, taken._on_gpu = self.loss, self.gradients, self._on_gpu
        return taken

    def read_on_gpu(self) -> tuple[float, float]:
        """Read what was kept; the GPU has computed it already, so that nothing waits but the copy."""
        found = {True: self.loss, False: self.gradients}
        if self._on_gpu:
            torch = sys.modules["torch"]
            if FiniteChecks._stream is None:
                FiniteChecks._stream = torch.cuda.Stream()
            with torch.no_grad(), torch.cuda.stream(FiniteChecks._stream):
                numbers = torch.stack([value.reshape(()).float() for _, value in self._on_gpu]).tolist()
            for (is_loss, _), number in zip(self._on_gpu, numbers):  # noqa: B905 - Python 3.8
                ok = math.isfinite(number) and found[is_loss] != NOT_FINITE
                found[is_loss] = FINITE if ok else NOT_FINITE
        return found[True], found[False]
