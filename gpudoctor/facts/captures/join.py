"""Join the dumps of one machine by bus id, UUID and index into one Node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, MOST_GPUS, SourceError, clipped
from gpudoctor.facts.captures.gpu_lists import joined_dumps, with_addresses, with_failures, without_gpu_memory
from gpudoctor.facts.captures.host.fabric_manager import without_failed_jobs
from gpudoctor.facts.captures.host.lspci import PciTree
from gpudoctor.facts.captures.host.module import shows_gpus_in_container, without_container_failures
from gpudoctor.facts.captures.kernel_logs import joined, joined_logs
from gpudoctor.facts.captures.leaves import merged, plausible, say_absent
from gpudoctor.facts.captures.lines import NO_LIMIT, TimeLimit
from gpudoctor.facts.captures.nvidia_smi.nvlink import with_remote_kinds
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump
from gpudoctor.facts.captures.nvidia_smi.topology import Topology
from gpudoctor.facts.captures.reader import Block, NoRow, Part, TextReader
from gpudoctor.facts.captures.readers import READERS
from gpudoctor.facts.captures.text_statements import from_tool, worst_first
from gpudoctor.facts.captures.transcript import Transcript
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.facts.model.node import Driver, Environment, Host, KernelLog, Node, PciBus, Source
from gpudoctor.facts.model.reported import OWN, Reported

MAX_PARTS = 2000  # `nvidia-smi -l` prints a table each second: the text is no longer kept from here on
MAX_NOTES = 50


class Dumps:
    """Collects the dumps of one machine: call `add` for each source, then `node` once, all within the limit."""

    def __init__(self, limit: TimeLimit = NO_LIMIT) -> None:
        self._limit = limit
        self.files: list[str] = []
        self.notes: list[str] = []
        self._reported: list[Reported] = []
        self._parts: list[tuple[str, str, Part]] = []  # file, sort key (the text), facts
        self._logs: list[KernelLog] = []
        self._left_out = 0
        self._hosts: set[str | None] = set()  # of the transcripts
        self._file = ""
        self._read = 0
        self._errors: list[tuple[str, SourceError]] = []
        self._of_file: list[tuple[int, Part]] = []  # first line, facts

    def add(self, lines: Iterable[tuple[str, bool]], file: str, *, quiet: bool = False) -> int:
        """Read the lines of one source (see `lines_of`); return how many dumps, and statements, were read in it.

        Lines that were not recognised are counted in the notes, unless `quiet`. Raise SourceError, without the file's
        name, if dumps were recognised but none of them could be read.
        """
        self._file, self._read, self._errors, self._of_file = file, 0, [], []
        transcript = Transcript(READERS, self._read_block, file)
        transcript.read(self._limit.held(lines))
        self._hosts |= transcript.hosts
        if self._errors and not self._read:
            raise self._errors[0][1]
        for place, error in self._errors:
            self.could_not_read(f"{file}, {place}: not read: {error}")
        unread = 0 if quiet else self._note_unread(transcript)
        statements = () if quiet else transcript.statements.said
        self._reported.extend(statements)
        if self._read and transcript.unrecognised.count and not quiet:
            self.notes.append(f"{file}: {transcript.unrecognised.words()}")
        if transcript.lines_over_limit:
            self.notes.append(f"{file}: {transcript.lines_over_limit} lines of a text beyond its limit were not read")
        read = self._read + len(statements) + unread
        if read and file not in self.files:
            self.files.append(file)
        return read

    def not_understood(self, quoted: str) -> None:
        """Record what the source says, in which nothing was read: it may be anything, so that the node cannot pass."""
        text = f"not understood (if a job printed it: gpudoctor diagnose FILE): {quoted}"
        self._reported.append(Reported(text, loudness="unread"))

    def could_not_read(self, text: str) -> None:
        """Record that a part of the source could not be read: it may hold a failure, so that the node cannot pass."""
        self.notes.append(text)
        self._reported.append(from_tool(OWN, text, "unread"))

    def _read_block(self, reader: TextReader, block: Block) -> None:
        try:
            part = reader.read(block)
        except SourceError as error:
            self._errors.append((f"{reader.name} in line {block.first_line}", error))
            return
        self._read += 1
        if hidden := next((each for each in block.no_rows if not reader.is_whole(block, each)), None):
            self._may_lack_gpus(reader.name, hidden)
        part.smi = tuple(replace(dump, sample=block.first_line + dump.sample) for dump in part.smi)
        self._settle(reader, block, part)
        self.notes.extend(f"{self._file}: {note}" for note in part.notes)
        self._reported.extend(part.reported)
        if part.node.kernel_log != KernelLog():
            self._add_log(part.node.kernel_log, block)
            part.node = replace(part.node, kernel_log=KernelLog())
        if len(self._parts) >= MAX_PARTS:
            self._left_out += 1
        elif part != Part(notes=part.notes, reported=part.reported):
            self._parts.append((self._file, block.text if len(self._parts) < 100 else "", part))

    def _note_unread(self, transcript: Transcript) -> int:
        """Record what a text holds and no reader reads; return how much that is."""
        if text := transcript.in_string:
            place = f"{self._file}, line {text.number}"
            self.could_not_read(f"{place}: a text of {text.text} in a string: give it by itself, with its line ends")
        if row := transcript.row_below:
            self._may_lack_gpus("rows without a head", row)
        return (text is not None) + (row is not None)

    def _may_lack_gpus(self, name: str, line: NoRow) -> None:
        text = f"{self._file}, {name}: GPUs may be missing, see line {line.number}: {clipped(line.text)}"
        self.could_not_read(text)

    def _settle(self, reader: TextReader, block: Block, part: Part) -> None:
        """Drop the failures that this success, further down in the same text, shows to be repaired."""
        repaired: list[Callable[[Node], Node]] = []
        # not the journal, whose lines may be older than those before it
        if reader.name == "systemctl status" and part.node.fabric_manager.service == "active":
            repaired.append(without_failed_jobs)
        if shows_gpus_in_container(block, part):
            repaired.append(without_container_failures)
        for first_line, earlier in self._of_file if repaired else ():
            for without in repaired if first_line < block.first_line else ():
                earlier.node = without(earlier.node)
        if len(self._of_file) < MAX_PARTS:
            self._of_file.append((block.first_line, part))

    def _add_log(self, log: KernelLog, block: Block) -> None:
        if block.goes_on_from and self._logs:
            self._logs[-1] = joined(self._logs[-1], log, goes_on=True)
        else:
            self._logs.append(log)
            if len(self._logs) > MAX_PARTS and (whole := joined_logs(self._logs)):
                self._logs = [whole]

    @property
    def shows_gpus(self) -> bool:
        """Whether any dump is about GPUs, their driver or the kernel: an environment alone does not describe a node."""
        empty = Node()
        return bool(self._logs or self._reported) or any(
            part.smi or part.topology or (part.pci_tree and part.pci_tree.nvidia_devices)
            or replace(part.node, pci=PciBus(), host=Host(), environment=Environment()) != empty
            for _, _, part in self._parts
        )  # fmt: skip

    def node(self, name: str) -> Node:
        """The joined node, independent of the order of the dumps; leaves in no dump are "not in this capture".

        Only a success below a failure in the same text ends it. Raise SourceError for dumps of several machines.
        """
        parts = sorted(self._parts, key=lambda item: (item[0], item[1]))
        topology = self._topology([part.topology for _, _, part in parts if part.topology is not None])
        # of a function that is in two dumps, a plain `lspci` shows less than -vvv
        trees = [part.pci_tree for _, _, part in parts if part.pci_tree is not None]
        tree = reduce(lambda one, other: merged(one, other, []), trees) if trees else None
        dumps = [(file, dump) for file, _, part in parts for dump in part.smi]
        conflicts: list[str] = []
        node = Node()
        for _, _, part in parts:
            node = merged(node, part.node, conflicts)
        pairs = merged(topology.pairs if topology else NOT_READ, node.pairs, conflicts)
        smi = self._smi(dumps, topology)
        gpus = smi.gpus
        if tree is not None:
            gpus = with_addresses(gpus, tree.gpus)
        gpus = with_remote_kinds(with_failures(gpus, smi.unnumbered), all_gpus=bool(gpus) and smi.complete)
        if len(gpus) > MOST_GPUS:
            raise SourceError(f"more than {MOST_GPUS} GPUs: not the dump of one machine")
        gpus = tuple(_with_location(gpu, tree) for gpu in gpus)
        self.notes.extend(f"two texts differ in {conflict}: the first counts" for conflict in dict.fromkeys(conflicts))
        if self._left_out:
            self.notes.append(f"{self._left_out} texts beyond the first {MAX_PARTS} were not used")
        node = replace(
            node,
            driver=_driver_of_node(smi.driver, node.driver),
            gpus=gpus,
            pairs=pairs if isinstance(pairs, Missing) else tuple(sorted(pairs, key=lambda pair: (pair.a, pair.b))),
            host=self._host(node.host, gpus),
            kernel_log=joined_logs(self._logs) or KernelLog(),
        )
        collected_at = smi.collected_at if known(smi.collected_at) else ABSENT
        source = Source("capture", name, collected_at, files=tuple(self.files), notes=self._shown_notes())
        return replace(plausible(say_absent(node)), source=source, reported=worst_first(self._reported))

    def _host(self, host: Host, gpus: tuple[Gpu, ...]) -> Host:
        """The host of the texts, with what its GPUs and the prompts of its transcripts tell of it."""
        host = without_gpu_memory(host, gpus)
        if any(gpu.settings.virtualization in ("passthrough", "vgpu") for gpu in gpus):
            # only a driver inside a virtual machine reports these modes
            host = replace(host, virtualization="vm")
        if host.hostname == NOT_READ and len(self._hosts) == 1 and (only := next(iter(self._hosts))):
            host = replace(host, hostname=only)
        return host

    def _shown_notes(self) -> tuple[str, ...]:
        notes = list(dict.fromkeys(self.notes))
        more = [f"and {len(notes) - MAX_NOTES} more notes"] if len(notes) > MAX_NOTES else []
        return (*notes[:MAX_NOTES], *more)

    def _smi(self, dumps: list[tuple[str, SmiDump]], topology: Topology | None) -> SmiDump:
        """The texts that show GPUs, joined."""
        smi = joined_dumps(dumps, self.notes)
        if smi.gpus and smi.complete and topology and {g.index for g in topology.gpus} != {g.index for g in smi.gpus}:
            listing = next((dump for _, dump in dumps if dump.gpus and not dump.only_adds_facts), dumps[0][1])
            raise SourceError(
                f"{listing.name} shows {len(smi.gpus)} GPUs and topo -m {len(topology.gpus)}: "
                "keep the dumps of one machine only"
            )
        self._reported.extend(from_tool("another text", text, "unread") for text in smi.unlisted)
        return smi

    def _topology(self, found: list[Topology]) -> Topology | None:
        """The matrix with the most pairs; a note reports another one that differs."""
        if not found:
            return None
        first, *others = sorted(found, key=lambda topology: (-len(topology.pairs), repr(topology)))
        if any(set(other.pairs) - set(first.pairs) for other in others):
            self.notes.append("a second topo -m dump differs, and is not used")
        self.notes.extend(f"topo -m: {note}" for note in first.notes)
        return first


def _driver_of_node(smi: Driver, other: Driver) -> Driver:
    """The driver from nvidia-smi, completed by other dumps; module facts come from the kernel if it reported them."""
    of_module = {field: getattr(other, field) for field in ("module_version", "module_loaded", "nouveau_loaded")}
    read = {field: value for field, value in of_module.items() if not isinstance(value, Missing)}
    return replace(merged(smi, other, []), **read)


def _with_location(gpu: Gpu, tree: PciTree | None) -> Gpu:
    """The GPU with its PCIe path from lspci, and its NUMA node if topo -m is not there."""
    if tree is None:
        return gpu
    function = tree.of(gpu.bus_id)
    node = function.numa_node if function is not None and gpu.numa_node == NOT_READ else gpu.numa_node
    return replace(gpu, pcie=tree.link(gpu), numa_node=node)
