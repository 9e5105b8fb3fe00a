"""The measured figures of a report, each with the key by which it compares with those of other reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpudoctor.cluster.fleet.shapes import MeasuredOf
from gpudoctor.facts.model.missing import Missing
from gpudoctor.text.units import size_text

# smaller messages measure latency, whose spread on healthy nodes is no evidence about a link
SMALLEST_BYTES = 1 << 20
_IMPOSSIBLE = 1e12

Entry = tuple[str | int, ...]
"""A measurement and where: the kind, then the parameters it depends on, then the GPUs, if any."""

Figure = tuple[str | int, ...]
"""A measurement: values of equal figures may be compared between nodes."""

MeasuredGpus = tuple[int, ...]
"""The indexes of the GPUs it was measured on; empty for the whole node."""


class _Kind(NamedTuple):
    """A kind of measurement: its figure for people, made of the parameters, and on how many GPUs it is measured.

    `of_any_gpu`: it does not depend on a GPU's position in the machine, and is compared over all GPUs of all nodes.
    """

    words: Callable[..., str]
    unit: str = "GB/s"
    gpus: int = 1
    of_any_gpu: bool = False


_KINDS: dict[str | int, _Kind] = {
    "collective": _Kind(lambda op, size, dtype, ranks: f"{op} {size_text(size)} {dtype}, {ranks} ranks", gpus=0),
    "pair": _Kind(lambda size, _, a, b: f"send and receive {size_text(size)}, GPU {a} and {b}", gpus=2),
    "peer": _Kind(lambda size, a, b: f"copy {size_text(size)} from GPU {a} to {b}", gpus=2),
    "h2d": _Kind(lambda size, gpu: f"copy {size_text(size)} host to GPU {gpu}"),
    "d2h": _Kind(lambda size, gpu: f"copy {size_text(size)} to host from GPU {gpu}"),
    "h2d-together": _Kind(lambda size, _, gpu: f"copy {size_text(size)} host to GPU {gpu}, all at once"),
    "d2h-together": _Kind(lambda size, _, gpu: f"copy {size_text(size)} to host from GPU {gpu}, all at once"),
    "gemm": _Kind(lambda dtype, size: f"matrix product {dtype} {size}", "TFLOP/s", of_any_gpu=True),
    "copy": _Kind(lambda: "device memory, copy", of_any_gpu=True),
    "triad": _Kind(lambda: "device memory, triad", of_any_gpu=True),
    "step": _Kind(lambda ranks, *_: f"train step, {ranks} ranks", "ms", gpus=0),
    "train-compute": _Kind(lambda *_: "train compute", "ms", of_any_gpu=True),
}


def figures(measured: MeasuredOf) -> tuple[tuple[Entry, ...], list[float]]:
    """The entries measured on GPUs, and their values in the same order; nothing for CPU ranks.

    This runs once for each of thousands of reports, most of which have the same entries. That is why entries are flat
    tuples, and why `figure_of` is applied later, once per distinct entry.
    """
    launch = measured.launch
    if launch is None or launch.backend != "nccl":
        return (), []
    entries: list[Entry] = []
    values: list[float | Missing] = []
    add, value = entries.append, values.append
    world = launch.world_size
    gpus = {rank.rank: rank.rank if rank.gpu is None else rank.gpu for rank in launch.ranks}
    gpu_of = gpus.get
    for row in measured.collectives:
        if row.size_bytes >= SMALLEST_BYTES:
            add(("collective", row.op, row.size_bytes, row.dtype, world))
            value(row.busbw_gb_s)
    for pair in measured.pairs:
        add(("pair", pair.size_bytes, world, gpu_of(pair.a, pair.a), gpu_of(pair.b, pair.b)))
        value(pair.busbw_gb_s)
    for link in measured.host_links:
        gpu, size = gpu_of(link.rank, link.rank), link.size_bytes
        entries += (
            *(("h2d", size, gpu), ("d2h", size, gpu)),
            *(("h2d-together", size, world, gpu), ("d2h-together", size, world, gpu)),
        )
        values += (link.h2d_alone_gb_s, link.d2h_alone_gb_s, link.h2d_together_gb_s, link.d2h_together_gb_s)
    for copy in measured.peer_links:
        add(("peer", copy.size_bytes, gpu_of(copy.source, copy.source), gpu_of(copy.target, copy.target)))
        value(copy.gb_s)
    for compute in measured.compute:
        gpu = gpu_of(compute.rank, compute.rank)
        for gemm in compute.gemms:
            add(("gemm", gemm.dtype, gemm.size, gpu))
            value(gemm.tflops)
        entries += (("copy", gpu), ("triad", gpu))
        values += (compute.copy_gb_s, compute.triad_gb_s)
    training = measured.training
    if training is not None and training.device == "cuda":
        same = (training.batch_per_rank, training.parameters)
        add(("step", training.world_size, *same))
        value(training.steady_step_ms)
        for rank in training.ranks:
            add(("train-compute", *same, gpu_of(rank.rank, rank.rank)))
            value(rank.compute_ms)
    return _known(entries, values)


def _known(entries: list[Entry], values: list[float | Missing]) -> tuple[tuple[Entry, ...], list[float]]:
    """Only the entries with a plausible value: JSON has no infinity, but it may contain 1e999."""
    retained = [number for number in values if isinstance(number, float)]
    if len(retained) == len(values) and (not retained or (min(retained) >= 0.0 and max(retained) < _IMPOSSIBLE)):
        return tuple(entries), retained
    good = [isinstance(number, float) and 0.0 <= number < _IMPOSSIBLE for number in values]
    retained = [number for number in retained if 0.0 <= number < _IMPOSSIBLE]
    return tuple(entry for entry, is_good in zip(entries, good, strict=True) if is_good), retained


def figure_of(entry: Entry) -> tuple[Figure, MeasuredGpus]:
    """The figure of an entry, and the GPUs it was measured on.

    >>> figure_of(("gemm", "bf16", 8192, 3))
    (('gemm', 'bf16', 8192), (3,))
    >>> figure_of(("peer", 1024, 3, 5))
    (('peer', 1024, 3, 5), (3, 5))
    """
    kind = _KINDS[entry[0]]
    gpus = tuple(int(gpu) for gpu in entry[len(entry) - kind.gpus :])
    return (entry[:-1] if kind.of_any_gpu else entry), gpus


def less_is_better(figure: Figure) -> bool:
    """Whether the figure is a time; otherwise it is a rate."""
    return unit_of(figure) == "ms"


def unit_of(figure: Figure) -> str:
    """
    >>> unit_of(("gemm", "bf16", 8192)), unit_of(("step", 8, 32, 100)), unit_of(("copy",))
    ('TFLOP/s', 'ms', 'GB/s')
    """
    return _KINDS[figure[0]].unit


def figure_words(figure: Figure) -> str:
    """The figure for people.

    >>> figure_words(("collective", "all_reduce", 268435456, "float32", 8))
    'all_reduce 256 MiB float32, 8 ranks'
    >>> figure_words(("peer", 268435456, 3, 5))
    'copy 256 MiB from GPU 3 to 5'
    """
    return _KINDS[figure[0]].words(*figure[1:])


def with_gpus(message: str, gpus: MeasuredGpus) -> str:
    """The words for a figure, with the GPUs it was measured on unless they say so themselves.

    >>> with_gpus("device memory, copy", (3,)), with_gpus("copy 1 MiB from GPU 3 to 5", (3, 5))
    ('device memory, copy, GPU 3', 'copy 1 MiB from GPU 3 to 5')
    """
    return f"{message}, GPU {' and '.join(map(str, gpus))}" if gpus and "GPU" not in message else message
