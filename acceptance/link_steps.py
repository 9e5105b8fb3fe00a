"""Steps `shared-memory`, `peer-copies` and `nvlinks`: what GPUs use to reach each other, against other programs."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from acceptance.assumptions import beside_assumed, case_of, constant, not_measured
from acceptance.quick_steps import loaded_gpus
from acceptance.run import AcceptanceRun, Item
from acceptance.smi_step import SMI
from gpudoctor.checks.core.case import Case
from gpudoctor.checks.host import nccl_shared_memory as nccl_need
from gpudoctor.checks.link import peer
from gpudoctor.checks.nvlink import links
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.nvidia_smi.nvlink import parse_nvlink
from gpudoctor.facts.model.gpu import Gpu, NvLink
from gpudoctor.facts.model.measured_hardware import PeerLink
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node

_SHM = "/dev/shm"
_EVERY_S = 0.02
_PAGES_MIB = 1.0  # a rank: NCCL's small files (a page each), and what a tmpfs rounds up
_SHM_TOLERANCE = 0.05
_CUMEM_OFF = {"NCCL_CUMEM_ENABLE": "0"}  # then every NCCL from 2.18 on maps the pool at its start
_OF_SHM = tuple(constant(nccl_need, name) for name in ("_CONNECTS_LATE", "_CHANNELS", "_BUFFER_BYTES"))


class ShmUse(msgspec.Struct, frozen=True):
    """Use of /dev/shm while `ranks` started NCCL, above what was used before, in MiB; `assumed_mib`: by host.shm."""

    settings: dict[str, str]
    ranks: int
    readings: int
    peak_mib: float
    nccl: str | None
    assumed_mib: float | None


def shared_memory(run: AcceptanceRun) -> Iterator[Item]:
    """Watch /dev/shm during a check of the collectives, as users start it and with cuMem off."""
    if not run.on_cpu and len(run.node.gpus) < 2:
        yield not_measured(4, "one GPU: a single rank starts no NCCL; it takes two or more", *_OF_SHM)
        return
    if not run.on_cpu and len(loaded_gpus(run)) < 2:
        yield not_measured(4, "fewer than two GPUs of this node may be put under load", *_OF_SHM)
        return
    taken = []
    for name, settings in (("shm", {}), ("shm-cumem-off", _CUMEM_OFF)):
        with _watching_shm() as watch:
            report = run.check("collective.correct", "--level", "standard", name=name, settings=settings)
        launch, node = report.measurements.launch, report.facts
        ranks = launch.world_size if launch is not None else 0
        view = report.measurements.torch_view
        version = known(view.nccl) if view is not None else None
        taken.append(
            ShmUse(settings, ranks, watch.readings, watch.peak_mib, version, _assumed_shm_mib(node, version, ranks))
        )
        if run.on_cpu:
            break
    run.raw["measured-shm.json"] = msgspec.json.encode(taken)
    if run.on_cpu:
        yield not_measured(4, f"CPU ranks do not use NCCL ({_SHM} was read {taken[0].readings} times)", *_OF_SHM)
        return
    for use in taken:
        yield judged_shm(use)


def judged_shm(use: ShmUse) -> Item:
    """The peak against what host.shm says that so many ranks certainly map; more than that makes its FAIL too lax."""
    setting = " ".join(f"{name}={value}" for name, value in use.settings.items()) or "as users start it"
    constants = (*_OF_SHM, _pool_constant(use.nccl))
    if not use.readings or use.ranks < 2 or use.assumed_mib is None:
        return not_measured(
            4, f"{setting}: {use.ranks} ranks started NCCL, and {_SHM} was read {use.readings} times", *constants
        )
    measured = f"{use.peak_mib:.1f} MiB of {_SHM} while {use.ranks} ranks started NCCL {use.nccl} ({setting})"
    slack_mib = _PAGES_MIB * use.ranks + _SHM_TOLERANCE * use.assumed_mib
    holds = abs(use.peak_mib - use.assumed_mib) <= slack_mib
    return beside_assumed(4, holds, measured, f"{use.assumed_mib:.1f} MiB (within {slack_mib:.1f})", *constants)


def _assumed_shm_mib(node: Node | msgspec.UnsetType, version: str | None, ranks: int) -> float | None:
    if isinstance(node, msgspec.UnsetType) or version is None:
        return None
    # the NCCL that the ranks loaded, which need not be the one that the facts found
    software = msgspec.structs.replace(node.software, nccl=version)
    case = case_of(msgspec.structs.replace(node, software=software))
    through_shm = any(known(pair.p2p_read) not in (None, "OK") and not known(pair.nvlinks) for pair in case.pairs)
    return nccl_need.nccl_shared_memory(case).at_start_mib(ranks, peer_to_peer=not through_shm)


def _pool_constant(version: str | None) -> str:
    """The row of the table of pools that this NCCL has."""
    first, factors = next(
        ((first, factors) for first, factors in nccl_need._POOLS if _numbers(version) >= first), ((), ())
    )
    return f"{nccl_need.__name__}._POOLS[{first}] = {factors}"


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (version or "").split(".")[:2] if part.isdecimal())


class _ShmWatch:
    """The highest use of /dev/shm above that at the beginning."""

    def __init__(self) -> None:
        self.readings = 0
        self.peak_mib = 0.0
        self._before_mib = self._used_mib()

    def take(self) -> None:
        used_mib = self._used_mib()
        if used_mib is not None and self._before_mib is not None:
            self.readings += 1
            self.peak_mib = round(max(self.peak_mib, used_mib - self._before_mib), 2)

    @staticmethod
    def _used_mib() -> float | None:
        try:
            size = os.statvfs(_SHM)
        except OSError:
            return None
        # NCCL unlinks its files at once: only the file system's own count shows them
        return (size.f_blocks - size.f_bfree) * size.f_frsize / 2**20


@contextmanager
def _watching_shm() -> Iterator[_ShmWatch]:
    watch, over = _ShmWatch(), threading.Event()

    def look() -> None:
        while not over.wait(_EVERY_S):
            watch.take()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


_NVBANDWIDTH = "nvbandwidth"
_READ_TEST = "device_to_device_memcpy_read_ce"
_COPY_TOLERANCE = 0.10  # gpudoctor times single copies, nvbandwidth many in a row
_MATRIX = re.compile(r"GPU\(row\)\s*(->|<-)\s*GPU\(column\)")
_OF_COPIES = (constant(peer, "_NVLINK_WARN_SHARE"), constant(peer, "_CLASS_WARN_SHARE"))


def peer_copies(run: AcceptanceRun) -> Iterator[Item]:
    """Each direction between two GPUs, one at a time, as link.peer measures it and as nvbandwidth does."""
    program = shutil.which(_NVBANDWIDTH)
    if run.on_cpu:
        yield not_measured(8, "CPU ranks have no GPUs to copy between", *_OF_COPIES)
        return
    if len(run.node.gpus) < 2:
        yield not_measured(8, "one GPU: there is no other to copy to", *_OF_COPIES)
        return
    if program is None:
        yield not_measured(8, f"{_NVBANDWIDTH} is not on PATH", *_OF_COPIES)
        return
    report = run.reports.get("full") or run.check("link.peer", "--level", "full")
    uuids, own = loaded_gpus(run), report.measurements.peer_links
    if not own:
        gap = report.measurements.not_run.get("peer") or report.measurements.not_run.get("link")
        yield not_measured(8, gap.reason if gap else "gpudoctor measured no copies", *_OF_COPIES)
        return
    done = run.child([program, "-t", _READ_TEST], settings={"CUDA_VISIBLE_DEVICES": ",".join(uuids)})
    text = done.stdout.decode("utf-8", "replace")
    run.raw["measured-nvbandwidth.txt"] = text.encode()
    if not (table := copy_rates(text)):
        yield not_measured(
            8, f"{_NVBANDWIDTH} {done.words}: it shows no matrix, see measured-nvbandwidth.txt", *_OF_COPIES
        )
        return
    yield judged_copies(own, table)


def judged_copies(own: tuple[PeerLink, ...], table: Mapping[tuple[int, int], float]) -> Item:
    """The direction that differs the most."""
    pairs = [(link, table[link.source, link.target]) for link in own if table.get((link.source, link.target))]
    if not pairs:
        return not_measured(8, f"{_NVBANDWIDTH} measured none of the {len(own)} directions", *_OF_COPIES)
    link, other = max(pairs, key=lambda pair: abs(pair[0].gb_s / pair[1] - 1))
    off = link.gb_s / other - 1
    measured = (
        f"{len(pairs)} directions; rank {link.source} to {link.target} differs the most: "
        f"gpudoctor {link.gb_s:.4g}, {_NVBANDWIDTH} {other:.4g} GB/s ({off:+.1%})"
    )
    return beside_assumed(8, abs(off) <= _COPY_TOLERANCE, measured, f"within {_COPY_TOLERANCE:.0%}", *_OF_COPIES)


def copy_rates(text: str) -> dict[tuple[int, int], float]:
    """GB/s by (source, target) of nvbandwidth's matrix, of which rows are sources or, with `<-`, targets."""
    rates: dict[tuple[int, int], float] = {}
    arrow: str | None = None
    for line in text.splitlines():
        if header := _MATRIX.search(line):
            arrow = header[1]
            continue
        row = line.split()
        if arrow is None or len(row) < 2 or not row[0].isdecimal() or "." not in line:
            continue
        for column, word in enumerate(row[1:]):
            pair = (int(row[0]), column) if arrow == "->" else (column, int(row[0]))
            try:
                rates[pair] = float(word)
            except ValueError:
                continue  # N/A: the same GPU
    return rates


_OF_NVLINKS = (constant(links, "_SPEED_SHARE"),)


def nvlinks(run: AcceptanceRun) -> Iterator[Item]:
    """State and speed of each NVLink as gpudoctor reads them and as nvidia-smi does."""
    program = shutil.which(SMI)
    if program is None:
        yield not_measured(10, f"{SMI} is not on PATH", *_OF_NVLINKS)
        return
    done = run.child([program, "nvlink", "-s"])
    text = done.stdout.decode("utf-8", "replace")
    run.raw["nvidia-smi-nvlink.txt"] = text.encode()
    if not any(known(gpu.nvlinks) for gpu in run.node.gpus) and "Link " not in text:
        yield not_measured(10, "neither gpudoctor nor nvidia-smi shows an NVLink here", *_OF_NVLINKS)
        return
    try:
        shown = {dump.uuid: dump.nvlinks for dump in parse_nvlink(text)}
    except SourceError as error:
        yield not_measured(10, f"{SMI} nvlink -s {done.words}: {error}", *_OF_NVLINKS)
        return
    yield from judged_nvlinks(run.node, shown)


def judged_nvlinks(node: Node, shown: Mapping[str, tuple[NvLink, ...] | Missing]) -> Iterator[Item]:
    """Each link's state and speed in both, and the speed beside the nominal one of the model's profile."""
    case = case_of(node)
    for gpu in node.gpus:
        other = known(shown.get(known(gpu.uuid) or "", Missing("not shown"))) or ()
        own = known(gpu.nvlinks) or ()
        unlike = _unlike(own, other)
        active = [link for link in own if known(link.state) == "active"]
        measured = f"{gpu.label}: {len(active)} of {len(own)} links active, {SMI} {_active(other)} of {len(other)}"
        differing = f"; links {', '.join(map(str, unlike[:6]))} differ" if unlike else ""
        yield beside_assumed(
            10, not unlike, measured + differing, "the same state and speed of each link", *_OF_NVLINKS
        )
        yield from _speed(gpu, active, nominal=_nominal_gb_s(case, gpu))


def _speed(gpu: Gpu, active: list[NvLink], *, nominal: float | None) -> Iterator[Item]:
    speeds = [speed for link in active if (speed := known(link.speed_gb_s)) is not None]
    if nominal is not None and speeds:
        share = min(speeds) / nominal
        measured = (
            f"{gpu.label}: its slowest link at {min(speeds):g} GB/s, {share:.2f} of the profile's {nominal:g} GB/s"
        )
        yield beside_assumed(
            10, share >= links._SPEED_SHARE.value, measured, "a healthy link reaches the profile's rate", *_OF_NVLINKS
        )


def _nominal_gb_s(case: Case, gpu: Gpu) -> float | None:
    model = case.model_of(gpu)
    return model.nvlink.raw_gb_s if model is not None and model.nvlink is not None else None


def _active(shown: tuple[NvLink, ...]) -> int:
    return sum(known(link.state) == "active" for link in shown)


def _unlike(own: tuple[NvLink, ...], other: tuple[NvLink, ...]) -> list[int]:
    """The numbers of the links whose state or speed differs; those that only one of both shows count too."""
    by_smi = {link.link: link for link in other if known(link.state) is not None}
    by_nvml = {link.link: link for link in own if known(link.state) is not None}
    unlike = []
    for number in sorted(by_smi.keys() | by_nvml.keys()):
        one, two = by_nvml.get(number), by_smi.get(number)
        if one is None or two is None or known(one.state) != known(two.state):
            unlike.append(number)
            continue
        speeds = known(one.speed_gb_s), known(two.speed_gb_s)
        if speeds[0] is not None and speeds[1] is not None and abs(speeds[0] / speeds[1] - 1) > 0.02:
            unlike.append(number)
    return unlike
