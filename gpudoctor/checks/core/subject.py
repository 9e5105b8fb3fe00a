"""What a finding is about: the node, a GPU, a pair, a link, a rank, an adapter or a path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.text.units import ranges


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a finding is about. A GPU is identified by index, UUID and bus id."""

    kind: Literal["gpu", "pair", "link", "rank", "nic", "node", "path"]
    gpu: int | None = None
    uuid: str | None = None
    bus_id: str | None = None
    gpus: tuple[int, int] | None = None
    link: int | None = None
    rank: int | None = None
    name: str | None = None

    @property
    def all_gpus(self) -> tuple[int, ...]:
        """The GPU that it is or is on, both of a pair; none for what is about no GPU."""
        return self.gpus or (() if self.gpu is None else (self.gpu,))

    @property
    def label(self) -> str:
        """The name in text: "GPU 5 (0000:bb:00.0)", "GPU 3 - GPU 5", "rank 1 (GPU 1)"."""
        if self.kind == "pair" and self.gpus:
            return f"GPU {self.gpus[0]} - GPU {self.gpus[1]}"
        gpu = f"GPU {self.gpu}" if self.gpu is not None else ""
        if self.kind == "rank":
            return f"rank {self.rank}" + (f" ({gpu})" if gpu else "")
        if self.kind == "link":
            return f"{gpu} link {self.link}"
        if self.kind == "gpu":
            if not gpu and (self.bus_id or self.uuid):
                return f"GPU {self.bus_id or self.uuid}"
            return f"{gpu} ({self.bus_id})" if self.bus_id else gpu
        return self.name or "node"


NODE = Subject(kind="node")


def of_gpu(gpu: Gpu) -> Subject:
    uuid = None if isinstance(gpu.uuid, Missing) else gpu.uuid
    return Subject(kind="gpu", gpu=gpu.index, uuid=uuid, bus_id=gpu.bus_id_read)


def of_pair(a: int, b: int) -> Subject:
    return Subject(kind="pair", gpus=(min(a, b), max(a, b)))


def of_rank(rank: int, gpu: int | None = None, uuid: str | None = None) -> Subject:
    return Subject(kind="rank", rank=rank, gpu=gpu, uuid=uuid)


def of_nic(name: str) -> Subject:
    return Subject(kind="nic", name=name)


def of_path(name: str) -> Subject:
    return Subject(kind="path", name=name)


def grouped_label(subjects: Iterable[Subject]) -> str:
    """ "GPU 0-3, 5" for GPUs; other labels are listed, at most four of them."""
    retained = list(subjects)
    gpus = sorted({s.gpu for s in retained if s.kind == "gpu" and s.gpu is not None})
    others = list(dict.fromkeys(s.label for s in retained if s.kind != "gpu" or s.gpu is None))
    shown = others[:4] + ([f"{len(others) - 4} more"] if len(others) > 4 else [])
    return ", ".join(([f"GPU {ranges(gpus)}"] if gpus else []) + shown)
