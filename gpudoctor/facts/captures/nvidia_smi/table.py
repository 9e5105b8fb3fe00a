"""The table of plain `nvidia-smi`, drivers 375 to 610: GPUs with their indices, MIG devices, processes."""

from __future__ import annotations

import re

from msgspec.structs import replace

from gpudoctor.facts.captures import BUS_ID, SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.names import PATHS
from gpudoctor.facts.captures.nvidia_smi.query_dump import ANSWERED, SmiDump, time_in
from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT, GpuDump, GpuDumps
from gpudoctor.facts.captures.reader import NO_MORE, Block, Part, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.facts.model.reported import Reported

NAME = "nvidia-smi"
_DATE = re.compile(r"\s*([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d \d{4})$")
_HEAD = re.compile(r"\s*\|\s*NVIDIA-SMI\s+(\S+)")
_DRIVER = re.compile(r"Driver Version:\s*(\d{3}\.[\d.]{1,12})")
_MODULE = re.compile(r"KMD Version:\s*(\d{3}\.[\d.]{1,12})")
_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s*(\d{1,3}\.\d{1,3}|N/A)")
_GPU = re.compile(
    rf"\s*\|\s*(?P<index>\d{{1,4}})\s+(?P<name>\S.{{0,60}}?)\s+(?P<mode>On|Off|N/A|ERR!|WDDM|TCC|MCDM)\s*"
    rf"\|\s*(?P<bus_id>{BUS_ID})\s+(?P<display>On|Off|N/A|ERR!)\s*\|\s*(?P<ecc>\S.{{0,20}}?)?\s*\|?\s*$"
)
# the row of a GPU that is not in the form above, such as the integrated one of a Jetson: no bus id
_OTHER_GPU = re.compile(
    r"\s*\|\s*\d{1,4}\s+((?=(?:NVIDIA|Tesla|GeForce|Quadro)\b|[^|]*\|)\S[^|]{0,60}?)(?:\s+(?:On|Off|N/A))?\s*(?:\||$)"
)
# "N/A" contains the slash that separates two values
_CELL = r"N/A|[^\s/|][^/|]{0,16}?"
_STATE = re.compile(
    rf"\s*\|\s*(?P<fan>\S+)\s+(?P<temp>\S+)\s+(?P<perf>\S+)\s+(?P<draw>{_CELL})\s*/\s*(?P<limit>{_CELL})\s*"
    rf"\|\s*(?:(?P<memory>(?:N/A|[A-Z][A-Za-z ]{{2,24}}?)(?=\s*\|))|(?P<used>{_CELL})\s*/\s*(?P<total>{_CELL}))\s*"
    r"\|\s*(?P<util>\S+)\s+(?P<compute>\S.{0,16}?)\s*\|?\s*$"
)
_MIG_MODE = re.compile(r"\s*\|\s*\|\s*\|\s*(N/A|Disabled\*?|Enabled\*?|ERR!)\s*\|?\s*$")
_MIG = re.compile(r"\s*\|\s*(\d{1,4})\s+(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s*\|\s*(\S+)\s*/\s*(\S+)\s*\|")
_PROCESS = re.compile(
    r"\s*\|\s*(?P<gpu>\d{1,4})(?:\s+(?:\d{1,3}|N/A)\s+(?:\d{1,3}|N/A))?\s+(?P<pid>\d{1,10})\s+(?P<type>C\+G|M\+C|[CGM])\s+"
    r"(?P<name>\S.{0,120}?)\s+(?P<used_memory>\d{1,9}Mi?B|N/A)\s*\|?\s*$"
)
_LINE = re.compile(r"\s*[|+][-=+|\s]*|\s*\|")
# the head of another tool's table, whose rows may look alike
OTHER_TABLE = re.compile(
    r"\s*\| *(?:Diagnostic +\| Result +\||(?:Health Monitor Report|NvLink Link Status) +\||Overall Health\b"
    r"|GPU ID +\| Device|(?:AMD|HL|XPU)-SMI |(?:npu|mx)-smi |(?:GPU|Compute) instance(?: profile)?s: +\|)"
)
_BORDER = re.compile(r"\s*\+[-=+]{10,}\+?$")
_PROCESSES = re.compile(r"\s*\|\s*Processes:")
_MIG_DEVICES = re.compile(r"\s*\|\s*MIG devices:")


# also a table without its head; the date before a table begins another one: `nvidia-smi -l` prints many
@text_reader(
    NAME,
    lambda line: any(form.match(line) for form in (_HEAD, _DATE, _GPU, _PROCESSES, _MIG_DEVICES)),
    lambda line: _LINE.match(line) is not None and OTHER_TABLE.match(line) is None,
    restarts=_DATE.match,
    row=re.compile(NO_MORE).match,
    is_whole=lambda block, no_row: any(map(_PROCESSES.match, block.lines[: no_row.above])),
)
def read_table(block: Block) -> Part:
    """The tables in their order, without those that contain neither a GPU nor the driver's version.

    Raise SourceError for two rows of one GPU. If the text is cut off, what is missing from a GPU's rows is Missing
    (failed), and so are the processes if their list has no end.
    """
    tables: list[_Table] = []
    for line in block.text.splitlines():
        date, head = _DATE.match(line), _HEAD.match(line)
        if date or (head and (not tables or tables[-1].head)) or not tables:
            tables.append(_Table())
        table = tables[-1]
        if date:
            table.date = date[1]
        else:
            table.add(line)
    if tables and not block.whole_end and not block.text.rstrip().endswith(("|", "+")):
        tables[-1].cut_in_line()
    dumps = tuple(dump for table in tables if (dump := table.dump()) is not None)
    return Part(smi=dumps, reported=tuple(each for dump in dumps for each in dump.reported))


class _Table:
    def __init__(self) -> None:
        self.date: str | None = None
        self.head = ""
        self._gpus = GpuDumps()
        self._current: GpuDump | None = None
        self._section = "gpus"
        self._ended = True  # whether the last section is complete
        self._has_processes = False
        self._errors: list[Reported] = []  # in cells that are no facts
        self._unread: list[str] = []  # the beginnings of rows of GPUs that were not understood

    def add(self, line: str) -> None:
        if _HEAD.match(line):
            self.head = line
        elif _BORDER.match(line):
            self._current, self._ended = None, True
        elif _PROCESSES.match(line):
            self._section, self._has_processes = "processes", True
        elif _MIG_DEVICES.match(line):
            self._section = "mig"
        elif self._section == "processes":
            self._ended = False
            if process := _PROCESS.match(line):
                self._add_process(process)
        elif self._section == "mig":
            if mig := _MIG.match(line):
                self._add_mig(mig)
        elif gpu := _GPU.match(line):
            self._add_gpu(gpu)
        elif self.head and (other := _OTHER_GPU.match(line)):
            self._unread.append(clipped(other[1]))
        elif self._current is not None:
            self._add_row(self._current, line)

    def _add_gpu(self, row: re.Match[str]) -> None:
        index = int(row["index"])
        if index in self._gpus:
            raise SourceError(f"GPU {index} has two rows: more than one table")
        # two rows with one bus id, which somebody replaced, are two GPUs all the same
        bus_id = "" if row["bus_id"] in {other.bus_id for other in self._gpus.values()} else row["bus_id"]
        gpu, ecc = self._gpus.at(index, bus_id), row["ecc"]
        gpu.lists_mig, gpu.cut = True, CUT  # until its second row
        values = gpu.values
        values["product_name"] = clipped(row["name"])
        # in place of the persistence mode, Windows shows the driver's model
        values["persistence_mode"] = row["mode"] if row["mode"] in ("On", "Off", "ERR!") else "N/A"
        values["display_active"] = row["display"]
        if ecc is not None and ecc.isdecimal():
            values["ecc_mode/current"], values["ecc_errors/volatile/double_bit/total"] = "Enabled", ecc
        elif ecc is not None:
            values["ecc_mode/current"] = "Disabled" if ecc == "Off" else ecc
            values["ecc_errors/volatile"] = "N/A" if ecc == "Off" else ecc
        self._current = gpu

    def _add_row(self, gpu: GpuDump, line: str) -> None:
        values = gpu.values
        if mig := _MIG_MODE.match(line):
            values["mig_mode/current"] = mig[1].rstrip("*")
            if mig[1].endswith("*"):  # a change is pending until a reset
                values["mig_mode/pending"] = "Enabled" if mig[1].startswith("Disabled") else "Disabled"
            return
        state = _STATE.match(line)
        if state is None:
            return
        gpu.cut = None
        for name, cell in state.groupdict(state["memory"]).items():
            if f"table.{name}" in PATHS:
                values[PATHS[f"table.{name}"]] = cell
            elif cell == "ERR!" and line.count("ERR!") == 1:  # more of them are told by the facts
                text = f"nvidia-smi says ERR! for the {name} of GPU {gpu.address}"
                self._errors.append(from_tool(NAME, text, "unread"))

    def _add_process(self, row: re.Match[str]) -> None:
        gpu = self._gpus.get(int(row["gpu"]), GpuDump())
        gpu.processes.append({name: row[name] for name in ("pid", "type", "name", "used_memory")})

    def _add_mig(self, row: re.Match[str]) -> None:
        gpu = self._gpus.get(int(row[1]), GpuDump())
        gpu.mig_devices.append(
            {"gpu_instance_id": row[2], "compute_instance_id": row[3], "fb_memory_usage/total": row[6]}
        )

    def cut_in_line(self) -> None:
        """Drop the values of the last row, which has no line end and may be cut off inside a word."""
        self._ended = False
        if self._current is not None:
            shown = self._current.values
            self._current.values = {name: shown[name] for name in ("product_name",) if name in shown}
            self._current.cut = CUT

    def dump(self) -> SmiDump | None:
        if not self._gpus and not self.head:
            return None
        notes = [f"the table is cut off inside GPU {index}" for index, gpu in self._gpus.items() if gpu.cut]
        gpus = self._gpus.by_index()
        if self._has_processes:
            gpus = tuple(map(self._with_processes, gpus))
        version, module, cuda = (form.search(self.head) for form in (_DRIVER, _MODULE, _CUDA))
        return SmiDump(
            gpus,
            replace(
                ANSWERED,
                module_version=module[1] if module else NOT_READ,
                library_version=version[1] if version else NOT_READ,
                cuda_version=cuda[1] if cuda and cuda[1] != "N/A" else NOT_READ,
                device_count=self._count(),
            ),
            collected_at=time_in(self.date) if self.date else NOT_READ,
            notes=tuple(notes),
            name=NAME,
            indexed=True,
            complete=not notes,
            reported=tuple(self._errors),
        )

    def _count(self) -> int | Missing:
        """The number of GPUs if one is not listed: NVML's indices have no gaps, so a skipped one exists."""
        if self._unread:
            return Missing(f"nvidia-smi's table shows nothing to judge of {', '.join(self._unread[:4])}", "failed")
        count = max(self._gpus, default=-1) + 1
        return count if count > len(self._gpus) else NOT_READ

    def _with_processes(self, gpu: Gpu) -> Gpu:
        if not self._ended:
            return replace(gpu, processes=CUT)
        return gpu if self._gpus[gpu.index].processes else replace(gpu, processes=())
