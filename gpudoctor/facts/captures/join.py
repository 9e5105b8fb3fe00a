"""Dumps of one machine, joined by bus id, UUID and order into one Node."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gpudoctor.facts.captures import MOST_GPUS, SourceError
from gpudoctor.facts.captures.complete import pairs_of, placeholder_gpus, say_absent, with_links, without_gpu_memory
from gpudoctor.facts.captures.host.lspci import PciTree, parse_lspci
from gpudoctor.facts.captures.nvidia_smi.nvlink import LinkDump, merge_links, parse_nvlink
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, init_failure
from gpudoctor.facts.captures.nvidia_smi.query_text import parse_smi_text
from gpudoctor.facts.captures.nvidia_smi.query_xml import parse_smi_xml
from gpudoctor.facts.captures.nvidia_smi.topology import Pair, Topology, parse_p2p, parse_topology
from gpudoctor.facts.captures.plausible import plausible
from gpudoctor.facts.captures.recognise import Kind
from gpudoctor.facts.model.gpu import Gpu, P2pStatus
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Environment, Host, KernelLog, Node, PciBus, Source

# printed line by line to its end: a last line without an end is half a line
_BY_LINES = ("smi-text", "nvlink", "topology", "p2p", "lspci", "free", "meminfo", "df")
_WRITES = re.compile(r"p2p[-_ ]?w|write", re.IGNORECASE)


class Dumps:
    """What the dumps of one machine tell, gathered one by one with `add`, then one `node`."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.notes: list[str] = []
        self._smi: tuple[str, SmiDump] | None = None
        self._links: dict[tuple[int, str], LinkDump] = {}
        self._topology: Topology | None = None
        self._p2p: dict[str, dict[Pair, P2pStatus]] = {}
        self._tree: PciTree | None = None
        self._host = Host()
        self._environment: Environment | None = None
        self._kernel_log: KernelLog | None = None
        self._module_version: str | None = None

    def add(self, kind: Kind, text: str, file: str) -> None:
        """Parse one dump. Raise SourceError, without the file's name, where it is broken.

        A second dump of a kind must agree with the first (`nvidia-smi -q`) or is passed over
        with a note.
        """
        if kind in _BY_LINES and not text.endswith("\n"):
            raise SourceError(
                f"cut off after line {text.count(chr(10))}: the last line has no end (if it is whole, add a line end)"
            )
        if kind in ("smi-xml", "smi-text", "smi-failure"):
            self._add_smi(kind, text, file)
        elif kind == "nvlink":
            for gpu in parse_nvlink(text):
                merge_links(self._links.setdefault((gpu.index, gpu.uuid), gpu), gpu)
        elif kind == "p2p":
            # the dump itself does not say whether it was asked for reads or writes
            direction = "p2p_write" if _WRITES.search(file) else "p2p_read"
            self._p2p.setdefault(direction, parse_p2p(text))
        elif kind == "topology":
            self._topology = self._first("topo -m", self._topology, parse_topology(text), file)
        elif kind == "lspci":
            self._tree = self._first("lspci", self._tree, parse_lspci(text), file)
        else:
            self._add_host(kind, text, file)
        if file not in self.files:
            self.files.append(file)

    @property
    def shows_gpus(self) -> bool:
        """Whether a dump speaks of the GPUs or their driver: an environment alone says nothing of a node."""
        driver = self._smi or self._topology or self._p2p or self._links or self._module_version
        return bool(driver or (self._tree and self._tree.nvidia_devices))

    def node(self, name: str) -> Node:
        """The node. Leaves that no dump holds are Missing, "not in this capture".

        Raise SourceError where the dumps cannot be of one machine.
        """
        smi = self._smi[1] if self._smi else SmiDump(Driver(), ())
        self.notes.extend(smi.notes)
        gpus = smi.gpus or placeholder_gpus(self._tree, list(self._links.values()), self._topology, self._p2p)
        if len(gpus) > MOST_GPUS:
            raise SourceError(f"more than {MOST_GPUS} GPUs: not the dump of one machine")
        partial = any("the dump shows" in note for note in smi.notes)
        if smi.gpus and not partial and self._topology and self._topology.places.keys() != {g.index for g in gpus}:
            shown = len(self._topology.places)
            raise SourceError(
                f"nvidia-smi -q shows {len(gpus)} GPUs and topo -m {shown}: keep the dumps of one machine only"
            )
        gpus = with_links(gpus, list(self._links.values()), whole=bool(smi.gpus) and not partial)
        gpus = tuple(self._placed(gpu) for gpu in gpus)
        host = without_gpu_memory(self._host, gpus)
        if any(gpu.settings.virtualization in ("passthrough", "vgpu") for gpu in gpus):
            # a guest's driver is what says so
            host = msgspec.structs.replace(host, virtualization="vm")
        driver = smi.driver
        if self._module_version is not None:
            driver = msgspec.structs.replace(driver, module_version=self._module_version, module_loaded=True)
        node = Node(
            driver=driver,
            gpus=gpus,
            pairs=pairs_of(self._topology, self._p2p),
            pci=PciBus(nvidia_devices=self._tree.nvidia_devices) if self._tree else PciBus(),
            host=host,
            kernel_log=self._kernel_log or KernelLog(),
            environment=self._environment or Environment(),
        )
        source = Source("capture", name, smi.collected_at, files=tuple(self.files), notes=tuple(self.notes))
        return msgspec.structs.replace(plausible(say_absent(node)), source=source)

    def _add_smi(self, kind: Kind, text: str, file: str) -> None:
        if kind == "smi-failure":
            failure = init_failure(text)
            if failure is None:
                raise SourceError("not an answer of nvidia-smi")
            dump = failure
        else:
            dump = parse_smi_xml(text) if kind == "smi-xml" else parse_smi_text(text)
        if self._smi is None:
            self._smi = (file, dump)
            return
        other_file, other = self._smi
        difference = _difference(dump, other)
        if difference:
            raise SourceError(f"contradicts {other_file} ({difference}): keep the dumps of one machine and time only")
        if len(dump.gpus) > len(other.gpus) or (len(dump.gpus) == len(other.gpus) and kind == "smi-xml"):
            self._smi = (file, dump)
        self.notes.append(f"{file} and {other_file} both hold nvidia-smi -q: {self._smi[0]} is used")

    def _add_host(self, kind: Kind, text: str, file: str) -> None:
        from gpudoctor.facts.captures.host.memory_text import kernel_module_version, parse_df, parse_free, parse_meminfo

        if kind == "environment":
            from gpudoctor.facts.system.environment import parse_env_text

            self._environment = self._first("env", self._environment, parse_env_text(text), file)
        elif kind == "kernel-log":
            from gpudoctor.facts.kernel_log.lines import read_kernel_text

            log = read_kernel_text(text, file)
            # dmesg and journal hold the same lines: the fuller one counts, never both
            if self._kernel_log is None or _events(log) > _events(self._kernel_log):
                self._kernel_log = log
        elif kind == "kernel-module":
            self._module_version = kernel_module_version(text)
        else:
            found = {"free": parse_free, "meminfo": parse_meminfo, "df": parse_df}[kind](text)
            news: dict[str, Any] = {
                field: value
                for field in Host.__struct_fields__
                if not isinstance(value := getattr(found, field), Missing)
                and isinstance(getattr(self._host, field), Missing)
            }
            self._host = msgspec.structs.replace(self._host, **news)

    def _first(self, what: str, before: Any, new: Any, file: str) -> Any:
        if before is not None and before != new:
            self.notes.append(f"{file}: a second {what} dump, not used")
        return new if before is None else before

    def _placed(self, gpu: Gpu) -> Gpu:
        """The GPU with what topo -m and lspci know of where it sits."""
        news: dict[str, Any] = {}
        place = self._topology.places.get(gpu.index) if self._topology else None
        if place is not None:
            news.update(cpu_affinity=place.cpu_affinity, numa_node=place.numa_node)
        if self._tree is not None:
            function = self._tree.functions.get(gpu.bus_id)
            if function is not None and place is None:
                news["numa_node"] = function.numa_node
            news["pcie"] = self._tree.link(gpu)
        return msgspec.structs.replace(gpu, **news) if news else gpu


def _difference(one: SmiDump, other: SmiDump) -> str | None:
    """Why two dumps cannot be of one machine at one time; None where they agree.

    One may show fewer GPUs (`-i 0`); shared bus ids must hold the same GPU.
    """
    versions = (one.driver.library_version, other.driver.library_version)
    if not any(isinstance(version, Missing) for version in versions) and versions[0] != versions[1]:
        return f"driver {versions[0]} here, {versions[1]} there"
    if one.driver.init_code != other.driver.init_code:
        return "one shows GPUs, the other failed"
    mine, theirs = ({gpu.bus_id: gpu.uuid for gpu in dump.gpus} for dump in (one, other))
    if not (mine.keys() <= theirs.keys() or theirs.keys() <= mine.keys()):
        return f"GPU {min(mine.keys() ^ theirs.keys())} is in one only"
    for bus_id in sorted(mine.keys() & theirs.keys()):
        uuids = (mine[bus_id], theirs[bus_id])
        if not any(isinstance(uuid, Missing) for uuid in uuids) and uuids[0] != uuids[1]:
            return f"GPU {bus_id} is {uuids[0]} here, {uuids[1]} there"
    return None


def _events(log: KernelLog) -> int:
    return 0 if isinstance(log.events, Missing) else len(log.events)
