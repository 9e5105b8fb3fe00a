"""The interface of a reader: which lines are its tool's, and the facts that a block of them tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gpudoctor.facts.captures.host.lspci import PciTree
from gpudoctor.facts.captures.nvidia_smi.nvlink import LinkDump
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump
from gpudoctor.facts.captures.nvidia_smi.topology import Pair, Topology
from gpudoctor.facts.model.gpu import P2pStatus
from gpudoctor.facts.model.node import Node


class Block(msgspec.Struct):
    """Lines of one tool, in their order and without what stood around them.

    Prompts, rulers, fences, quote marks, line numbers, colours and line ends are gone; indentation stays.
    `first_line` is the number of the first one in the source, from 1. `command` is what was typed at the prompt
    above, "" if no prompt was seen. `file` is the name of the source. `whole_end` is False if the source ends in
    the last line of this block without a line end: a figure there may have lost its last digits. `goes_on_from`: it is
    the next piece of the block before it.
    """

    lines: list[str]
    first_line: int = 1
    command: str = ""
    file: str = ""
    whole_end: bool = True
    goes_on_from: bool = False

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


class Part(msgspec.Struct):
    """What one block tells. All parts of a source are joined into one node.

    `node` holds the facts that the text itself gives; every other leaf stays NOT_READ. Of two parts that know
    different values, one counts and a note says so; lists of facts are joined by their required fields (the device
    and port of an `RdmaPort`, the bus id of a `PciDevice`). The other fields are for readers whose text must be
    joined to GPUs by index, bus id or UUID. `notes` are shown in the report, without the name of the file.
    """

    node: Node = Node()
    notes: tuple[str, ...] = ()
    smi: tuple[SmiDump, ...] = ()
    links: tuple[LinkDump, ...] = ()
    topology: Topology | None = None
    p2p: Mapping[str, dict[Pair, P2pStatus]] = {}
    pci_tree: PciTree | None = None


class TextReader(msgspec.Struct, frozen=True):
    """One kind of text. `name` is what people call it: it stands in notes ("lspci", "nvidia-smi -L").

    `begins(line)` is true (not None) for a line that only this text has, and that may be its first; it is asked for
    every line of a paste that no open block takes, so it must be cheap and must not fit prose. `goes_on(line)` is
    true for lines that may follow in it; a line that is neither is passed over and counted as not recognised, without
    ending the block. Blank lines are kept inside of a block.
    `after` is asked with the command of a prompt ("ulimit -a"): if it is true, the lines below it are this reader's
    even if none of them `begins` it. `read` may raise SourceError, with the place in the block only.
    `restarts(line)` is true for a line that can stand in such a text once only: there a new block of the same reader
    begins. With `until`, every line belongs to the block, up to the first for which it is true, whatever `goes_on`
    says; a line that begins another reader's text, and is no markup, still ends it.
    `may_be(line)` is asked last, for a line that nothing else explains: it may be of this text, behind a prefix that
    nobody knows.
    A reader with `in_pieces` has lines that mean the same alone as together (a log): a long block is read in pieces.
    """

    name: str
    begins: Callable[[str], object]
    goes_on: Callable[[str], object]
    read: Callable[[Block], Part]
    after: Callable[[str], object] | None = None
    restarts: Callable[[str], object] | None = None
    until: Callable[[str], object] | None = None
    may_be: Callable[[str], object] | None = None
    in_pieces: bool = False
