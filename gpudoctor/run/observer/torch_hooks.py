"""Where torch is hooked: the least that shows each phase, on classes and functions, never on the user's objects.

A hook on a module of the user would be copied and saved with it. All hooks do nothing but note the time; in a step that
is not timed they keep up the stack of phases, and call nothing: there each call costs ten times what it costs alone,
since the training has emptied the caches.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

from . import layout
from .guard import Guard
from .phases import Phases

_DISCOVERY_STEPS = 3
_OPTIMIZER_STEPS_SEEN = 16


class TorchHooks:
    """Hooks torch, and follows steps: a step ends with the optimizer that steps least often."""

    def __init__(self, torch: Any, phases: Phases, guard: Guard) -> None:
        self._torch = torch
        self._phases = phases
        self._guard = guard
        self._depths: list[tuple[int, int]] = []  # of the optimizers that step now: id, depth
        self._counts: dict[int, int] = {}
        self._ends_step = 0
        self._module_call: Any = None
        self._roots: set[type] = set()
        self.loader_seen = False
        self.loader_workers = 0
        self._distributed: Any = None

    def install(self) -> None:
        """Put all hooks in place; what this version of torch lacks is left out."""
        torch = self._torch
        optimizers = sys.modules["torch.optim.optimizer"]
        optimizers.register_optimizer_step_pre_hook(self._before_optimizer)
        optimizers.register_optimizer_step_post_hook(self._after_optimizer)
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            self._wrap(loader._BaseDataLoaderIter, "__next__", layout.DATA)
            self._wrap(loader.DataLoader, "__iter__", layout.DATA)
        self._wrap_backward(torch.autograd)
        distributed = sys.modules.get("torch._C._distributed_c10d") or getattr(torch._C, "_distributed_c10d", None)
        if distributed is not None and hasattr(distributed, "Work"):
            self._wrap_wait(distributed.Work, "wait")
            self._distributed = sys.modules.get("torch.distributed")
        self._module_call = torch.nn.Module.__call__
        torch.nn.Module.__call__ = self._call_of(self._module_call, discovering=True)

    def found_modules(self) -> None:
        """Hook parts of torch that are imported later than torch, once they are there."""
        parallel = sys.modules.get("torch.nn.parallel.distributed")
        if parallel is not None:
            self._wrap_wait(
                parallel.DistributedDataParallel, "_distributed_broadcast_coalesced", "broadcast of buffers"
            )
        functional = sys.modules.get("torch.distributed._functional_collectives")
        if functional is not None and hasattr(functional, "wait_tensor"):
            self._wrap_wait(functional, "wait_tensor")

    def ranks_are_joined(self) -> bool:
        """Whether there is a process group, so that there is something to wait for."""
        return self._distributed is not None and self._distributed.is_initialized()

    def _wrap(self, owner: Any, name: str, phase: int) -> None:
        def entered(args: Any, kwargs: Any) -> int:
            self.loader_seen = True
            self.loader_workers = getattr(args[0], "_num_workers", self.loader_workers)
            return self._phases.begin(phase)

        setattr(owner, name, self._around(getattr(owner, name), phase, entered))

    def _wrap_wait(self, owner: Any, name: str, what: str = "") -> None:
        original = getattr(owner, name)
        if getattr(original, "_gpudoctor", False):
            return
        phases, guard, is_compiling = self._phases, self._guard, self._torch.compiler.is_compiling
        names: dict[str, bytes] = {}

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or guard.off or get_ident() != phases.thread:
                return original(*args, **kwargs)
            caller = what or sys._getframe(1).f_code.co_name
            if caller not in names:
                names[caller] = caller.encode("utf-8", "replace")
            phases.waits_in = names[caller]
            return waiting(*args, **kwargs)

        def entered(args: Any, kwargs: Any) -> int:
            depth = phases.begin(layout.WAIT)
            phases.record.collective(phases.waits_in)
            return depth

        waiting = self._around(original, layout.WAIT, entered)
        wrapped._gpudoctor = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapped)

    def _around(
        self,
        original: Any,
        phase: int,
        entered: Callable[[Any, Any], int],
        *,
        inside: tuple[int, ...] = (),
        untimed: Callable[[Any, Any], None] | None = None,
    ) -> Callable[..., Any]:
        """The function as a phase of the training thread, unless it is called directly inside of one of `inside`.

        `entered` begins it if the step is timed, `untimed` is called in the others.
        """
        phases, guard, stack = self._phases, self._guard, self._phases.stack
        is_compiling = self._torch.compiler.is_compiling

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            # torch.compile traces through this function: for it, only the original is there
            if is_compiling() or guard.off or (stack and stack[-1] in inside) or get_ident() != phases.thread:
                return original(*args, **kwargs)
            if phases.timed:
                depth = guard.call(entered, args, kwargs)
            else:
                depth = len(stack)
                stack.append(phase)
                phases.entries += 1
                if untimed is not None:
                    guard.call(untimed, args, kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                if phases.timed:
                    guard.call(phases.end, depth)
                elif depth >= 0:
                    del stack[depth:]

        return wrapped

    def _wrap_backward(self, autograd: Any) -> None:
        phases, guard = self._phases, self._guard
        engine = autograd.Variable._execution_engine
        hooks: list[Any] = []

        def only_waits() -> None:
            remove_hooks()
            phases.turn(layout.WAIT)
            phases.record.collective(layout.END_OF_BACKWARD.encode())

        def remove_hooks() -> None:
            while hooks:
                hooks.pop().remove()

        def at_root(gradient: Any) -> None:
            # the first callback to be queued is the first to run when all gradients are there, so before DDP's wait
            engine.queue_callback(lambda: guard.call(only_waits))

        def entered(args: Any, kwargs: Any) -> int:
            depth = phases.begin(layout.BACKWARD)
            root = root_of(args, kwargs)
            phases.finite.look_at_loss(root, True)
            remove_hooks()
            if root is not None and root.requires_grad and self.ranks_are_joined():
                hooks.append(root.register_hook(lambda gradient: guard.call(at_root, gradient)))
            return depth

        def untimed(args: Any, kwargs: Any) -> None:
            phases.finite.look_at_loss(args[0] if args else kwargs.get("tensors"), False)

        autograd.backward = self._around(autograd.backward, layout.BACKWARD, entered, untimed=untimed)

    def _call_of(self, original: Any, *, discovering: bool = False) -> Callable[..., Any]:
        """A `__call__` of modules that notes only the outermost call."""
        phases = self._phases

        def entered(args: Any, kwargs: Any) -> int:
            depth = phases.begin(layout.FORWARD)
            module, *inputs = args
            phases.batch(id(module), *size_of_first_tensor(inputs, kwargs))
            if discovering:
                self._roots.add(type(module))
            return depth

        return self._around(original, layout.FORWARD, entered, inside=(layout.FORWARD, layout.DATA))

    def _narrow_to_roots(self) -> None:
        """Hook only the classes that were called outermost: other modules are called as without us again."""
        module = self._torch.nn.Module
        module.__call__ = self._module_call
        for root in self._roots:
            original = root.__call__
            root.__call__ = self._call_of(original)  # type: ignore[method-assign]

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        phases, stack = self._phases, self._phases.stack
        if self._guard.off:
            return
        if phases.timed or self._depths or not phases.owned or get_ident() != phases.thread:
            self._guard.call(self._enter_optimizer, optimizer)
            return
        self._depths.append((id(optimizer), len(stack)))
        stack.append(layout.OPTIMIZER)
        phases.entries += 1

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._guard.off:
            self._guard.call(self._leave_optimizer, optimizer)

    def _enter_optimizer(self, optimizer: Any) -> None:
        phases = self._phases
        if not phases.owned or get_ident() != phases.thread:
            phases.own()
        for place, (known, depth) in enumerate(self._depths):
            if known == id(optimizer):  # its last step raised
                del self._depths[place:]
                phases.end(depth)
                break
        if phases.timed:
            phases.finite.look_at_gradients(optimizer)
        self._depths.append((id(optimizer), phases.begin(layout.OPTIMIZER)))

    def _leave_optimizer(self, optimizer: Any) -> None:
        while self._depths:
            known, depth = self._depths.pop()
            if known == id(optimizer):
                if self._phases.timed:
                    self._phases.end(depth)
                else:
                    del self._phases.stack[depth:]
                break
        if self._depths:
            return  # inside another optimizer's step
        if self._is_end_of_step(id(optimizer)):
            self._phases.end_step()
            if self._phases.steps == _DISCOVERY_STEPS:
                self._narrow_to_roots()

    def _is_end_of_step(self, optimizer: int) -> bool:
        """Whether this is the optimizer that steps least often; the last one of those that step equally often."""
        counts = self._counts
        counts[optimizer] = counts.get(optimizer, 0) + 1
        if len(counts) == 1:
            self._ends_step = optimizer
        elif sum(counts.values()) <= _OPTIMIZER_STEPS_SEEN * len(counts) or optimizer == self._ends_step:
            least = min(counts.values())
            if counts.get(self._ends_step, 0) > least + 1 or self._ends_step not in counts:
                self._ends_step = next(key for key, count in counts.items() if count == least)
        return optimizer == self._ends_step


def root_of(args: Any, kwargs: Any) -> Any:
    """What backward begins with: the first of its tensors that needs a gradient."""
    tensors = args[0] if args else kwargs.get("tensors")
    if hasattr(tensors, "register_hook"):
        return tensors
    return next((t for t in tensors if getattr(t, "requires_grad", False)), None)


def size_of_first_tensor(args: Any, kwargs: Any) -> tuple[float, float]:
    """Rows and elements of the first tensor among the arguments, or inside the first containers; 0 if none."""
    waiting = [*args, *kwargs.values()]
    for looked, thing in enumerate(waiting):
        if looked > 64:
            break
        shape = getattr(thing, "shape", None)
        if shape is not None and hasattr(thing, "numel"):
            if len(shape):
                return float(shape[0]), float(thing.numel())
        elif isinstance(thing, dict):
            waiting.extend(list(thing.values())[:16])
        elif isinstance(thing, (list, tuple)):
            waiting.extend(thing[:16])
    return 0.0, 0.0
