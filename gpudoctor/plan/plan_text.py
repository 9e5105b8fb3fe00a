"""The plan as text, laid out for a width."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from textwrap import wrap

from gpudoctor.lazy import lazy_pattern
from gpudoctor.plan.model import Communication, MachineSummary, Plan, PlannedStrategy, Speed, TrafficRow
from gpudoctor.plan.model_shape import count_text
from gpudoctor.plan.text_rows import hanging, row_of, rows_of, verification_lines, wrapped
from gpudoctor.text.units import option_ranges, seconds_text

NARROWEST = 40
_WORDS = 24  # the fewest columns for text beside a strategy's figures
_NAMED = lazy_pattern(r"[A-Za-z0-9][\w .,()-]{1,40}:( |$)")
_FITS = {"fits": "fits", "tight": "tight", "no": "no", "not here": "-"}
_LONE = {"no": "does not fit", "-": "not here"}  # without the column heading
_RECOMPUTE = {"none": "no recomputation", "selective": "selective recomputation", "full": "full recomputation"}


def render_text(plan: Plan, *, width: int) -> str:
    """The whole plan in lines of at most `width` columns, except commands and names."""
    width = max(width, NARROWEST)
    lines: list[str] = []
    parts = [_head, _strategies, _recommended, _communication, _settings, _troubles, verification_lines, _launch]
    if plan.machine is None:  # planned for CPU ranks, which have no settings and no command
        parts = [_head, _strategies, _recommended, _troubles, verification_lines]
    for part in (*parts, _formulas):
        made = list(part(plan, width))
        if made:
            lines += [*made, ""]
    return "\n".join(line.rstrip() for line in lines[:-1]) + "\n"


def _head(plan: Plan, width: int) -> Iterator[str]:
    source, model, machine, verification = plan.source, plan.model, plan.machine, plan.verification
    assert source is not None
    assert model is not None
    reported = f"{plan.precision}, {plan.optimizer}, sequences of {plan.seq} tokens"
    if machine is None:
        devices = f"{verification.ranks} CPU ranks" if verification is not None else "CPU ranks"
    else:
        devices = (f"{machine.nodes} nodes of " if machine.nodes > 1 else "") + machine.gpu_names
        reported += f". {machine.memory_gib:.1f} GiB of GPU memory each. {_nvlink(machine)}"
    if plan.simulated:
        with_faults = f" with {', '.join(source.faults)}" if source.faults else ""
        yield from wrapped(f"SIMULATED node {source.name}{with_faults}: made up, no plan for a real machine", width)
    elif source.kind == "profile":
        text = f"From profile {source.name}, no node was read: network, RAM, CPUs and faults are not known"
        yield from wrapped(text, width)
    elif source.kind != "live":
        yield from wrapped(f"Read from {source.kind} {source.name}: that machine, not this one", width)
    size = count_text(model.parameters)
    active = f", {count_text(model.active_parameters)} active" if model.active_parameters != model.parameters else ""
    title = f"gpudoctor {plan.tool.version} | plan | {model.name}, {size} parameters{active} | {devices}"
    for text in (title, reported, f"Dimensions: {model.origin}"):
        yield from wrapped(text, width)
    for index, reason in plan.left_out:
        yield from wrapped(f"GPU {index} is left out: {reason}", width)


def _nvlink(machine: MachineSummary) -> str:
    nvlinked, gpus = machine.nvlinked, machine.gpus_per_node
    if gpus == 1:
        return ""
    if not machine.topology_read:
        return f"NVLink joins all {gpus} in this kind of node." if nvlinked == gpus else "What joins them is not known."
    if nvlinked == gpus:
        return f"NVLink joins all {gpus}."
    return f"NVLink joins {nvlinked} each." if nvlinked > 1 else "No NVLink."


def _strategies(plan: Plan, width: int) -> Iterator[str]:
    room = plan.machine.memory_gib if plan.machine is not None else None
    rows = [_row(strategy, strategy == plan.recommended, room) for strategy in plan.strategies]
    title = max(len(row[1]) for row in rows)
    gib = "GiB/GPU" if plan.machine is not None else "GiB"
    if width < title + len("  GiB/GPU  free  fits     ") + _WORDS:  # text below the name, not beside it
        for mark, name, amount, free, fit, text in rows:
            yield from hanging(f"{mark} ", name, width)
            amounts = "" if amount == "-" else f"{amount} {gib}, {f'{free} free, ' if free else ''}"
            batch = "batch " if fit in ("fits", "tight") else ""  # the heading says so of a wide table
            yield from hanging("    ", f"{amounts}{_LONE.get(fit, fit)}: {batch}{text}", width)
        return
    yield f"  {'strategy':<{title}}  {gib:>7}  {'free':>4}  fits   batch x accumulation"
    for mark, name, amount, free, fit, text in rows:
        yield from hanging(f"{mark} {name:<{title}}  {amount:>7}  {free:>4}  {fit:<5}  ", text, width)


def _row(strategy: PlannedStrategy, taken: bool, room_gib: float | None) -> tuple[str, str, str, str, str, str]:
    """Mark, title, GiB used, GiB left free, whether it fits, and the rest. A tight fit is shown without losses."""
    amount = free = ""
    text = f"{strategy.micro_batch} x {strategy.micro_batches}, {_RECOMPUTE[strategy.recompute]}"
    memory = strategy.memory
    if strategy.fit in ("no", "not here"):
        text = strategy.reason
    elif memory is not None and room_gib is not None:
        used = memory.total_gib - (memory.allocator_gib if strategy.fit == "tight" else 0)
        amount, free = f"{used:.1f}", f"{max(room_gib - used, 0):.1f}"
        if strategy.fit == "tight":
            text += f"; only if the allocator loses less than the usual {memory.allocator_gib:.1f}"
    if memory is not None and not amount:
        amount = f"{memory.total_gib:.1f}"
    return (">" if taken else " "), strategy.title, amount or "-", free, _FITS[strategy.fit], text


def _recommended(plan: Plan, width: int) -> Iterator[str]:
    taken, batch = plan.recommended, plan.batch
    assert taken is not None
    assert taken.memory is not None
    assert batch is not None
    memory = taken.memory
    device = "GPU" if plan.machine is not None else "rank"
    yield from row_of("take", taken.title, width)
    yield from row_of("why", plan.why or "", width)
    # in RAM with the other states if they are offloaded
    later = "" if memory.gradients_gib >= 0.05 or memory.host_gib else " (before any gradient exists)"
    parts = [
        (memory.weights_gib, "weights"),
        (memory.gradients_gib, "gradients"),
        (memory.optimizer_gib, "optimizer"),
        (memory.activations_gib, f"activations and loss{later}"),
        (memory.gathered_gib, "gathered for a moment"),
        (memory.allocator_gib, "lost by the allocator"),
        (memory.framework_gib, "CUDA and NCCL"),
    ]
    text = ", ".join(f"{gib:.1f} {name}" for gib, name in parts if gib >= 0.05)
    yield from row_of("memory", f"{memory.total_gib:.1f} GiB on the fullest {device}: {text}", width)
    if memory.host_gib:
        yield from row_of("", f"and {memory.host_gib:.0f} GiB of RAM for each GPU", width)
    yield from rows_of("instead", plan.instead, width)
    steps = f"{batch.accumulation} accumulated" if batch.accumulation > 1 else "no accumulation"
    if taken.pipeline > 1:
        steps = f"{batch.accumulation} micro-batches in the pipeline"
    yield from row_of(
        "batch",
        f"{batch.per_gpu} a {device} at a time x {steps} x {batch.data_ranks} data-parallel = {batch.global_batch} "
        f"sequences, {batch.tokens} tokens a step; {_RECOMPUTE[taken.recompute]}",
        width,
    )
    rates = "; ".join(f"x {rate.factor:g} by the {rate.rule} rule ({rate.source})" for rate in plan.learning_rate)
    yield from row_of("learning rate", f"that of one {device} with batch {batch.per_gpu}: {rates}", width)
    if plan.bucket:
        yield from row_of("bucket", f"{plan.bucket.name}={plan.bucket.value}: {plan.bucket.why}", width)


def _communication(plan: Plan, width: int) -> Iterator[str]:
    step = plan.communication
    assert step is not None
    yield from rows_of("a step sends", map(_sent, step.traffic) if step.traffic else ["nothing: one GPU"], width)
    names = {"node": "inside a node", "network": "between nodes", "host": "to and from RAM"}
    rates = dict.fromkeys((row.link, row.rate) for row in step.traffic)
    yield from rows_of("at", (f"{names[link]}: {_speed(rate)}" for link, rate in rates), width)
    yield from row_of("arithmetic", _arithmetic(step), width)
    yield from row_of("efficiency", _efficiency(step), width)


def _sent(row: TrafficRow) -> str:
    seconds = f", {seconds_text(row.seconds)}" if row.seconds is not None else ""
    return f"{_gb(row.gb)} GB {row.what}{seconds}{'' if row.hidden else ', not hidden behind arithmetic'}"


def _arithmetic(step: Communication) -> str:
    if step.compute_s is None:
        return f"no time can be given: {step.compute.source}"
    rate = f"{step.compute.value:.4g} TFLOP/s: {step.compute.source}"
    return f"{'at least ' if step.compute.at_most else ''}{seconds_text(step.compute_s)} a step ({rate})"


def _efficiency(step: Communication) -> str:
    unknown = [row.rate.source for row in step.traffic if row.rate.value is None]
    if unknown:
        return f"no bound and no time: {unknown[0]}"
    bubble = f"; {step.bubble:.0%} of a step is the pipeline's bubble" if step.bubble else ""
    if step.efficiency_hidden is None or step.efficiency_not_hidden is None:
        return f"no bound: {step.compute.source}{bubble}"
    if not step.traffic:
        return "nothing is lost to communication"
    return (
        f"at most {_share(step.efficiency_hidden)} if communication hides behind arithmetic, "
        f"{_share(step.efficiency_not_hidden)} if nothing of it does{bubble}"
    )


def _settings(plan: Plan, width: int) -> Iterator[str]:
    for label, settings in (("set", plan.wanted), ("do not set", plan.harmful)):
        yield from rows_of(label, (f"{each.name}={each.value}   {each.why}" for each in settings), width)


def _troubles(plan: Plan, width: int) -> Iterator[str]:
    for trouble in plan.troubles:
        who = f"GPU {option_ranges(trouble.gpus)}: " if trouble.gpus else ""
        yield from row_of(trouble.status, f"{who}{trouble.found} ({trouble.check})", width)
        yield from row_of("", trouble.means, width)
    yield from rows_of("note", plan.warnings, width)


def _launch(plan: Plan, width: int) -> Iterator[str]:
    launch = plan.launch
    assert launch is not None
    if plan.recommended and plan.recommended.pipeline * plan.recommended.tensor > 1:
        yield from row_of("add", "data, tokenizer, learning rate and steps, for pretrain_gpt.py", width)
    else:
        yield from _code(launch.code, width)
    yield ""
    if launch.script is None:
        yield f"$ {launch.command}"
        return
    yield f"$ {launch.command}     with this plan.sbatch:"
    yield from (f"    {line}" for line in launch.script.splitlines())


def _code(rows: Iterable[str], width: int) -> Iterator[str]:
    """What train.py does: words are wrapped; a statement is on a line of its own, to be copied."""
    for number, text in enumerate(rows):
        label = "train.py" if number == 0 else ""
        try:
            ast.parse(text)
        except SyntaxError:
            yield from row_of(label, text, width)
        else:
            yield from row_of(label, text, max(width, len(text) * 2))


def _formulas(plan: Plan, width: int) -> Iterator[str]:
    for formula in plan.formulas:
        title, _, text = formula.partition("\n")
        yield title
        for block in _blocks(text):
            yield from wrap(block, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
        yield ""


def _blocks(text: str) -> Iterator[str]:
    """The lines of a docstring, joined; a line with a name and a colon begins a new block if a sentence ended above."""
    block: list[str] = []
    for line in text.splitlines():
        if block and (not line or (block[-1].endswith((".", ":")) and _NAMED.match(line))):
            yield " ".join(block)
            block = []
        if line:
            block.append(line)
    yield " ".join(block)


def _share(share: float) -> str:
    """
    >>> _share(0.004), _share(0.82)
    ('less than 1%', '82%')
    """
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


def _gb(amount: float) -> str:
    """
    >>> _gb(0.0421), _gb(2886.22)
    ('0.0421', '2886')
    """
    return f"{amount:.3g}" if amount < 1000 else f"{amount:.0f}"


def _speed(rate: Speed) -> str:
    if rate.value is None:
        return f"not known: {rate.source}"
    return f"{'at most ' if rate.at_most else ''}{rate.value:.4g} {rate.unit} ({rate.source})"
