"""Reports of made-up fleets: of thousands of nodes for `benchmarks/fleet.py`, and the dozen in `docs/examples/`.

Each is a report of the product on a simulated node, healthy or with a fault, with figures of a full run put in and
varied; names, UUIDs, versions and times differ from node to node.

    python benchmarks/fleet_reports.py examples
"""

from __future__ import annotations

import datetime
import gzip
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor.checks.core.registry import all_checks
from gpudoctor.facts.model.measured_hardware import ComputeRank, Gemm, HostLink, PeerLink
from gpudoctor.facts.model.measurements import (
    Collective,
    Launch,
    Measurements,
    PairBandwidth,
    RankInfo,
    TorchView,
    Training,
    TrainRank,
)
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Run, SourceSummary, render_json

FAULTS = ("pcie-width-x8@3", "nvlink-link-down@5", "ecc-uncorrected@1", "thermal@6", "row-remap-failed@2", "gpu-lost@4")
_OPERATIONS = {"all_reduce": 478.0, "all_gather": 360.0, "reduce_scatter": 362.0, "alltoall": 330.0}
_SIZES = ((1 << 24, 0.62), (1 << 28, 0.9), (1 << 30, 1.0))
_UUID_MIDDLE = re.compile(rb"f1a7-4000-8000")
LINK_KEYS = ("h2d_alone_gb_s", "d2h_alone_gb_s", "h2d_together_gb_s", "d2h_together_gb_s")
Document = dict[str, Any]


class Planted:
    """Which node got which defect, by name."""

    def __init__(self) -> None:
        self.faulty: set[str] = set()
        self.slow: set[str] = set()
        self.narrow: set[str] = set()  # faulty, and slower for it
        self.drifting: dict[str, set[str]] = {}
        self.broken = self.foreign = self.older = self.duplicates = 0


def measured(node: Node) -> Measurements:
    """The figures of a healthy HGX H100 at level full; the node keeps the GPUs that answer."""
    gpus = node.gpus
    world = len(gpus)
    ranks = tuple(RankInfo(n, "cuda", gpu.index, known(gpu.uuid), gpu.bus_id) for n, gpu in enumerate(gpus))
    lanes = [(known(gpu.pcie.width) or 16) / 16 for gpu in gpus]
    step = (0.1, 20.0, 0.2, 0.125, 4.0, 0.4, 2.0, 31.5, 6.9, 6.1)
    return Measurements(
        launch=Launch("nccl", world, ranks, "fork-server", 6.0, 55.0),
        torch_view=TorchView("2.8.0+cu128", "12.8", "2.27.3", True, world, tuple(known(g.uuid) or "" for g in gpus)),
        collectives=tuple(
            Collective(op, size, "float32", 20, 1e6 * size / 1e9 / (rate * part), 2.0, rate * part / 1.75, rate * part)
            for op, rate in _OPERATIONS.items()
            for size, part in _SIZES
        ),
        pairs=tuple(
            PairBandwidth(a, b, 1 << 28, 20, 700.0, 3.0, 375.0) for a in range(world) for b in range(a + 1, world)
        ),
        host_links=tuple(
            HostLink(n, 1 << 28, 53.0 * lanes[n], 52.0 * lanes[n], 47.0 * lanes[n], 45.0 * lanes[n], 0, True)
            for n in range(world)
        ),
        peer_links=tuple(
            PeerLink(a, b, 1 << 28, 392.0, 700.0, True) for a in range(world) for b in range(world) if a != b
        ),
        compute=tuple(
            ComputeRank(
                n,
                (Gemm("bf16", 8192, 705.0, 2.0), Gemm("fp16", 8192, 690.0, 2.0)),
                *(2850.0, 2960.0, ("a" * 64,) * 5, 68 << 30, 0, 3, 132),
            )
            for n in range(world)
        ),
        training=Training(
            *("cuda", world, 40, 32, 59_000_000, 118_000_000),
            tuple(TrainRank(n, 20.0, *step, 1400.0, "b" * 64, None, (20.0, 20.0)) for n in range(world)),
            *(True, 0.0, True, 29.5, 8000.0, 31.5),
        ),
    )


def template(faults: tuple[str, ...]) -> Document:
    """The product's report on a simulated node, as plain data; the checks stay JSON, since nothing in them varies."""
    node = apply_faults(load_node("hgx-h100-8"), list(faults)) if faults else load_node("hgx-h100-8")
    source = SourceSummary(node.source.kind, node.source.name, node.source.faults)
    run = Run("", "2026-01-01T00:00:00+00:00", 71.0, "full", source, ("check", "--json", "--level", "full"))
    # what a node with a narrow link gives is known; on the others nobody would have put load
    loaded = not faults or faults[0].startswith("pcie-width")
    figures = measured(node) if loaded else Measurements()
    report = judge(node, figures, Question(checks=all_checks(), level="full"), run=run)
    # how long a check took would differ in every file
    checks = tuple(msgspec.structs.replace(check, duration_ms=0.0) for check in report.checks)
    document: Document = msgspec.json.decode(render_json(msgspec.structs.replace(report, checks=checks)))
    document["checks"] = msgspec.Raw(msgspec.json.encode(document["checks"]))
    return document


def vary(noise: random.Random, figures: Document) -> None:
    """Noise as repeats on healthy machines show it; each machine is a bit better or worse as a whole."""
    whole = noise.gauss(0.0, 0.002)
    for rows, keys, spread in (
        (figures["collectives"], ("busbw_gb_s",), 0.005),
        (figures["pairs"], ("busbw_gb_s",), 0.006),
        (figures["host_links"], LINK_KEYS, 0.008),
        (figures["peer_links"], ("gb_s",), 0.006),
        (figures["compute"], ("copy_gb_s", "triad_gb_s"), 0.004),
        ([gemm for row in figures["compute"] for gemm in row["gemms"]], ("tflops",), 0.012),
        (figures["training"]["ranks"], ("compute_ms",), 0.010),
        ([figures["training"]], ("steady_step_ms",), 0.008),
    ):
        for row in rows:
            for key in keys:
                dip = noise.uniform(0.0, 0.02) if noise.random() < 0.01 else 0.0
                row[key] *= 1 + whole + noise.gauss(0.0, spread) - dip


def encoded(document: Document, number: int) -> bytes:
    """The document as the product writes it, with its own UUIDs."""
    return _UUID_MIDDLE.sub(f"{number:04x}-4000-8000".encode(), msgspec.json.encode(document)) + b"\n"


class Maker:
    """Writes the reports of a fleet, with what is planted in it."""

    def __init__(self, folder: Path, nodes: int, seed: int) -> None:
        self._folder, self._nodes, self._random = folder, nodes, random.Random(seed)
        self.planted = Planted()
        self._healthy = msgspec.json.encode(template(()))
        self._faulty = {fault: msgspec.json.encode(template((fault,))) for fault in FAULTS}

    def write(self) -> int:
        """Write everything; return the number of bytes."""
        numbers = list(range(1, self._nodes + 1))
        self._random.shuffle(numbers)
        each = max(2, self._nodes // 500)
        takers = iter(numbers)
        planned: dict[int, Callable[[Document, str], None]] = {}
        for kind in (self._fault, self._slow_gpu, self._slow_link, self._slow_node, *self._drifts()):
            planned |= {next(takers): kind for _ in range(each)}
        size = 0
        for number in range(1, self._nodes + 1):
            name = f"gpu-{number:05d}"
            size += self._write_node(number, name, planned.get(number))
        return size + self._write_troubles(each)

    def _write_node(self, number: int, name: str, plant: Callable[[Document, str], None] | None) -> int:
        faulty = plant is not None and plant.__name__ == "_fault"
        document = msgspec.json.decode(self._faulty[FAULTS[number % len(FAULTS)]] if faulty else self._healthy)
        if document["measurements"].get("collectives"):
            vary(self._random, document["measurements"])
        began = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)
        began += datetime.timedelta(seconds=self._random.uniform(0, 1800))
        document["run"] |= {"id": f"run-{number}", "started_at": began.isoformat(timespec="seconds")}
        document["host"]["name"] = name
        document["host"] |= {"torch": "2.8.0+cu128", "nccl": "2.27.3"}
        if faulty and document["measurements"].get("collectives"):
            self.planted.narrow.add(name)
        if plant is not None:
            plant(document, name)
        data = encoded(document, number)
        (self._folder / f"{name}.json").write_bytes(data)
        return len(data)

    def _fault(self, document: Document, name: str) -> None:
        self.planted.faulty.add(name)

    def _slow_gpu(self, document: Document, name: str) -> None:
        """One GPU computes at 85 %."""
        self.planted.slow.add(name)
        gpu, figures = self._random.randrange(8), document["measurements"]
        for gemm in figures["compute"][gpu]["gemms"]:
            gemm["tflops"] *= 0.85
        figures["training"]["ranks"][gpu]["compute_ms"] /= 0.85

    def _slow_link(self, document: Document, name: str) -> None:
        """One GPU's link to the host reaches two thirds."""
        self.planted.slow.add(name)
        row = document["measurements"]["host_links"][self._random.randrange(8)]
        for key in LINK_KEYS:
            row[key] *= 0.66

    def _slow_node(self, document: Document, name: str) -> None:
        """All collectives of one node reach 82 %."""
        self.planted.slow.add(name)
        for row in document["measurements"]["collectives"]:
            row["busbw_gb_s"] *= 0.82

    def _drifts(self) -> Iterator[Callable[[Document, str], None]]:
        for item, key, value in (
            ("driver", "driver", "565.57.01"),
            ("kernel", "kernel", "6.8.0-31-generic"),
            ("NCCL", "nccl", "2.21.5"),
        ):
            yield self._drift(item, key, value)

        def other_vbios(document: Document, name: str) -> None:
            self.planted.drifting.setdefault("VBIOS", set()).add(name)
            document["gpus"][self._random.randrange(8)]["vbios"] = "96.00.30.00.01"

        yield other_vbios

    def _drift(self, item: str, key: str, value: str) -> Callable[[Document, str], None]:
        def plant(document: Document, name: str) -> None:
            self.planted.drifting.setdefault(item, set()).add(name)
            document["host"][key] = value
            if key == "nccl":
                document["measurements"]["torch_view"]["nccl"] = value

        return plant

    def _write_troubles(self, each: int) -> int:
        """Half-written, foreign, duplicate and older files."""
        planted, size = self.planted, 0
        for number in range(each):
            whole = (self._folder / f"gpu-{self._random.randint(1, self._nodes):05d}.json").read_bytes()
            cut = whole[: self._random.randrange(2000, len(whole) - 2)]
            older = msgspec.json.decode(whole)
            older["run"] |= {"id": f"older-{number}", "started_at": "2025-12-31T12:00:00+00:00"}
            for name, data in (
                (f"half-{number}.json", cut),
                (f"foreign-{number}.json", b'{"name": "something else", "values": [1, 2, 3]}\n'),
                (f"again-{number}.json", whole),
                (f"older-{number}.json", msgspec.json.encode(older)),
            ):
                (self._folder / name).write_bytes(data)
                size += len(data)
        planted.broken = planted.foreign = planted.duplicates = planted.older = each
        return size


_EXAMPLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    *((f"gpu-{number:02d}", ()) for number in range(1, 11)),
    ("gpu-11", ("pcie-width-x8@3",)),
    ("gpu-12", ("driver-hang@6",)),
)


def write_examples(folder: Path) -> None:
    """A dozen nodes as of one evening, with a fault of every sort that a fleet shows, and ten of them a week before."""
    for name, day in (("fleet-week-before", "2025-10-27"), ("fleet", "2025-11-03")):
        noise = random.Random(name)
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        for number, (host, faults) in enumerate(_EXAMPLES, 1):
            old = name != "fleet"
            if old and host == "gpu-12":
                continue
            document = msgspec.json.decode(msgspec.json.encode(template(() if old else faults)))
            document["run"] |= {"id": f"{name}-{number}", "started_at": f"{day}T21:{number:02d}:00+00:00"}
            document["host"] |= {"name": host, "torch": "2.8.0+cu128", "nccl": "2.27.3"}
            if document["measurements"].get("collectives"):
                vary(noise, document["measurements"])
            if not old:
                _example_troubles(document, host)
            _write_packed(target / f"{host}.json.gz", encoded(document, number))
    whole = msgspec.json.encode(template(()))
    (folder / "fleet" / "gpu-13.json").write_bytes(whole[:1500])
    (folder / "fleet" / "inventory.json").write_text('{"rack": "a3", "nodes": 13}\n', encoding="utf-8")


def _example_troubles(document: Document, host: str) -> None:
    if host == "gpu-04":
        for row in document["measurements"]["collectives"]:
            row["busbw_gb_s"] *= 0.8
    if host == "gpu-06":
        document["gpus"][2]["vbios"] = "96.00.30.00.01"
    if host == "gpu-09":
        document["host"] |= {"driver": "565.57.01", "nccl": "2.21.5"}
        document["measurements"]["torch_view"]["nccl"] = "2.21.5"


def _write_packed(path: Path, data: bytes) -> None:
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(data)


if __name__ == "__main__":
    write_examples(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/examples"))
