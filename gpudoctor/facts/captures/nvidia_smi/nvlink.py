"""`nvidia-smi -L` (the GPUs), and `nvidia-smi nvlink` with --status, -e or -R (the links of each GPU)."""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import ANSWERED, SmiDump, count_by_index, numbered
from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT, GpuDump, GpuDumps
from gpudoctor.facts.captures.nvidia_smi.values import Values, missing_word
from gpudoctor.facts.captures.reader import Block, NoRow, Part, text_reader
from gpudoctor.facts.model.gpu import UNKNOWN_BUS, Gpu, NvLink
from gpudoctor.facts.model.links import ALL_INACTIVE
from gpudoctor.facts.model.missing import NOT_READ, UNSUPPORTED, Missing, known
from gpudoctor.facts.model.node import Driver, short_bus_id

_GPU = re.compile(r"GPU (\d{1,4}): (.{0,200}?) ?\(UUID: ([^)\s]{1,80})\)")
_MIG = re.compile(r"MIG (\S{1,40})\s+Device\s+\d{1,3}: \(UUID: ([^)\s]{1,120})\)")
_MORE = re.compile(
    r"(?:Link \d{1,3}\b|MIG \S+ +Device|NVML: |NVLINK |Unable to|.{0,60}all links are inactive"
    r"|(?:NVLE|Firmware Version|MSE|NETIR[A-Z ]{0,8}):)",
    re.IGNORECASE,
)
_BEGIN_OF_ROW = re.compile(
    r"\s*(?:GPU ?(?:(\d{1,3})|\?):(?:\s*$|\s*(?:(?:NVIDIA|Tesla|GeForce|Quadro)\b|.{0,200}\(UUID)| ?<<<))"
)
_WHOLE_LINE = re.compile(r"(?:GB/s|[>)]|\d|\.\d|N/A\]?|active)$")
_LINK = re.compile(r"Link (\d{1,3}):\s*(.{0,200})")
_WORD = re.compile(r"<[^<>]{1,40}>|[A-Za-z]{3,20}")
_SPEED = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) GB/s")
_ERRORS = re.compile(r"(Replay|Recovery|CRC)(?: FLIT)? Errors?:\s*(\S.{0,60})?", re.IGNORECASE)
_REMOTE = re.compile(r"Remote Device ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_LINKS_ASKED = re.compile(r"\bnvlink\b.* (?:-s|--status|-e|--errorcounters|-R|--remotelinkinfo)(?:\s|$)")
_COUNTERS = {"replay": "replay_errors", "recovery": "recovery_errors", "crc": "crc_errors"}
_HIDDEN = "ffff:ff:ff."  # in place of a switch's address
# the field of a form that keeps no line ends
_RUN_TOGETHER = re.compile(r"(?<=\)) +(?=GPU \d{1,3}: )")


class LinkDump(msgspec.Struct):
    """One GPU of the dump. `links` are by number; empty if the GPU has no NVLink."""

    index: int
    name: str
    uuid: str
    links: dict[int, NvLink] = {}
    all_inactive: bool = False
    cut: str = ""

    @property
    def nvlinks(self) -> tuple[NvLink, ...] | Missing:
        if self.all_inactive and not self.links:
            return ALL_INACTIVE
        if not self.links:
            return UNSUPPORTED
        return tuple(self.links[number] for number in sorted(self.links))


def _shows_links(text: str, command: str) -> bool:
    """Whether the list contains the NVLinks, or that there are none; not with `-L`, `nvlink -c` or `nvlink -info`."""
    lines = [line.strip() for line in text.splitlines()]
    if any(_LINK.match(line) or "all links are inactive" in line.lower() for line in lines):
        return True
    return _LINKS_ASKED.search(command) is not None and not any(line.startswith("Link ") for line in lines)


def _parse_gpu_list(text: str) -> SmiDump:
    """Read `nvidia-smi -L`: the GPUs and their MIG devices. Raise SourceError if a GPU is listed twice."""
    gpus, gpu = GpuDumps(), GpuDump()
    for line in map(str.strip, _RUN_TOGETHER.sub("\n", text).splitlines()):
        if header := _GPU.match(line):
            index = int(header[1])
            if index in gpus:
                raise SourceError(f"GPU {index} is there twice: more than one list")
            gpu = gpus.at(index)
            gpu.values |= {"product_name": clipped(header[2]), "gpu_uuid": header[3]}
        elif mig := _MIG.match(line):
            gpu.values["mig_mode/current"] = "Enabled"
            gpu.mig_devices.append({"uuid": mig[2], "profile": mig[1]})
    driver = replace(ANSWERED, device_count=count_by_index(gpus))
    return SmiDump(gpus.by_index(), driver, name="nvidia-smi -L", indexed=True)


def parse_nvlink(text: str, *, whole_end: bool = True, gaps: Collection[int] = ()) -> list[LinkDump]:
    """The GPUs in the dump's order. Raise SourceError if there is none.

    The outputs of `--status`, `-e` and `-R` may be in one text; what is not in a link's lines is not read. If
    nvidia-smi only reports that all links are inactive, their number is taken from a GPU of the same model; without
    one, the links are Missing. If the dump ends inside its last GPU, the links that this GPU lacks and another one of
    its model has are Missing (failed). `whole_end`: False if the last line had no line end. `gaps`: numbers of
    lines below which others may be left out.
    """
    gpus: dict[tuple[int, str], LinkDump] = {}
    listings: list[_Listing] = []
    last = ""
    lines = text.splitlines()
    if not whole_end and lines and not _WHOLE_LINE.search(lines[-1]):
        lines.pop()
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        last = line or last
        if header := _GPU.match(line):
            gpu = LinkDump(int(header[1]), header[2], header[3])
            listings.append(_Listing(gpus.setdefault((gpu.index, gpu.uuid), gpu), number, number))
        elif listings and "all links are inactive" in line.lower():
            listings[-1].gpu.all_inactive = True
        elif listings and (link := _LINK.match(line)):
            place, links = int(link[1]), listings[-1].gpu.links
            listings[-1].count(link[2].strip(), number)
            links[place] = _with(links.get(place) or NvLink(place), link[2].strip())
    if not gpus:
        raise SourceError("no line like 'GPU 0: NAME (UUID: GPU-...)'")
    if _LINK.match(last) or _GPU.match(last):
        _mark_cut(listings[-1], listings[:-1])
    for gap in gaps:
        if above := [listing for listing in listings if listing.first_line <= gap]:
            _mark_cut(above[-1], listings)
    _add_inactive(gpus.values())
    return list(gpus.values())


def _add_inactive(gpus: Collection[LinkDump]) -> None:
    """Give a GPU whose links are all inactive as many as another one of its model has."""
    for gpu in gpus:
        if gpu.all_inactive and not gpu.links:
            peer = next((other for other in gpus if other.links and other.name == gpu.name), None)
            for number in peer.links if peer else ():
                gpu.links[number] = NvLink(number, state="inactive")


class _Listing(msgspec.Struct):
    """A GPU's header and the lines of links below it: the output of one option for that GPU."""

    gpu: LinkDump
    first_line: int
    last_line: int
    option: str = ""  # until the first link
    lines: int = 0

    def count(self, text: str, line: int) -> None:
        self.option = self.option or ("errors" if _ERRORS.match(text) else "remote" if _REMOTE.match(text) else "state")
        self.lines += 1
        self.last_line = line


def _mark_cut(last: _Listing, before: list[_Listing]) -> None:
    """Mark missing links: nvidia-smi lists every link, up or down, so fewer than on a similar GPU means truncation."""
    like = [each for each in before if each.gpu.name == last.gpu.name and last.option in ("", each.option)]
    whole = max(like, key=lambda listing: listing.lines, default=None)
    # remote ends of links that are down may be omitted
    if whole is None or last.lines >= whole.lines or last.option == "remote":
        return
    gpu, place = last.gpu, f"cut off after line {last.last_line}"
    gpu.cut = f"{place}: {last.lines} lines of links for GPU {gpu.index}, {whole.lines} before"
    for number in whole.gpu.links:
        link = gpu.links.get(number) or NvLink(number)
        lacking = ("state",) if whole.option == "state" else tuple(_COUNTERS.values())
        gpu.links[number] = replace(link, **{field: CUT for field in lacking if getattr(link, field) == NOT_READ})


def _with(link: NvLink, reported: str) -> NvLink:
    if speed := _SPEED.match(reported):
        return replace(link, state="active", speed_gb_s=float(speed.group(1)))
    word = reported.strip("<>").lower()
    if word in ("inactive", "disabled", "sleep"):
        return replace(link, state=word)
    if remote := _REMOTE.match(reported):
        bus_id = short_bus_id(remote.group(1))
        if _HIDDEN in bus_id:
            return replace(link, remote_kind="switch", remote_bus_id=None)
        return replace(link, remote_bus_id=bus_id)
    refused = missing_word(reported)
    if refused is not None and refused is not ABSENT:
        return replace(link, state=refused)
    if count := _ERRORS.match(reported):
        number = Values({"": count[2] or "N/A"}).whole("")
        return replace(link, **{_COUNTERS[count[1].lower()]: number})
    if _WORD.fullmatch(reported):
        return replace(link, state=Missing(f"not understood: {reported}", "failed"))
    return link


def with_remote_kinds(gpus: tuple[Gpu, ...], all_gpus: bool) -> tuple[Gpu, ...]:
    """Each GPU with what its links end at: a GPU, or a switch.

    `all_gpus`: `gpus` are all GPUs of the machine, so a remote address that is not a GPU and that several GPUs link to
    is a switch.
    """
    own = {gpu.bus_id for gpu in gpus}
    seen_from: dict[str, set[str]] = {}
    for gpu in gpus:
        for link in known(gpu.nvlinks) or ():
            if isinstance(link.remote_bus_id, str):
                seen_from.setdefault(link.remote_bus_id, set()).add(gpu.bus_id)

    def named(link: NvLink) -> NvLink:
        remote = link.remote_bus_id
        if not isinstance(remote, str):
            return link
        if remote in own:
            return replace(link, remote_kind="gpu")
        if all_gpus and len(seen_from[remote]) > 1:
            return replace(link, remote_kind="switch")
        return link

    return tuple(
        gpu if isinstance(gpu.nvlinks, Missing) else replace(gpu, nvlinks=tuple(named(link) for link in gpu.nvlinks))
        for gpu in gpus
    )


def _is_of_listed(block: Block, no_row: NoRow) -> bool:
    """Whether the line tells more of a GPU that is listed, as another program does ("GPU 0: NVIDIA H100")."""
    named = _BEGIN_OF_ROW.match(no_row.text)
    listed = {found[1] for found in map(_GPU.match, map(str.lstrip, block.lines)) if found is not None}
    return named is not None and named[1] in listed


@text_reader(
    "nvidia-smi -L or nvlink",
    lambda line: _GPU.match(line.lstrip()),
    lambda line: _MORE.match(line.lstrip()),
    row=_BEGIN_OF_ROW.match,
    is_whole=_is_of_listed,
)
def read_gpu_list(block: Block) -> Part:
    if not _shows_links(block.text, block.command):
        return Part(smi=(_parse_gpu_list(block.text),))
    found = parse_nvlink(block.text, whole_end=block.whole_end, gaps=[each.above for each in block.no_rows])
    gpus = tuple(
        Gpu(gpu.index, f"{UNKNOWN_BUS}{gpu.index}", gpu.uuid, clipped(gpu.name) or NOT_READ, nvlinks=gpu.nvlinks)
        for gpu in found
    )
    driver = Driver(device_count=count_by_index([gpu.index for gpu in gpus]))
    notes = tuple(gpu.cut for gpu in found if gpu.cut)
    return Part(smi=(numbered(gpus, "nvidia-smi nvlink", driver),), notes=notes)
