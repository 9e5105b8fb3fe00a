"""The lines of a text that no reader takes, as statements about the node: who says what, and about which device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from gpudoctor.facts.captures import clipped
from gpudoctor.facts.model.reported import Loudness, Reported
from gpudoctor.statements.about import about
from gpudoctor.statements.catalogue import ONE_DIGIT, find_label, known_error, xid_code
from gpudoctor.statements.forms import OF_A_BMC, form_of
from gpudoctor.statements.missing_gpus import missing_gpus
from gpudoctor.statements.model import Statement
from gpudoctor.statements.prefixes import Origin, stripped, unmarked, with_short_numbers
from gpudoctor.statements.reader import MOST_TEXT, statement_of, statement_of_record
from gpudoctor.statements.records import Records
from gpudoctor.statements.told import is_past

MOST_STATEMENTS = 200
_MOST_FORMS, _LONGEST_FORM = 10_000, 1000
# what the words of a node are about: a statement with none of them, no label and no device is about something else
OF_A_NODE = re.compile(
    r"\b(?:GPUs?|CUDA|cu(?:blas|dnn)\w*|NVML|NVLink|NVSwitch|NVRM|nvidia[\w.-]*|nv-\w+|NCCL|DCGM|dcgmi?|Xid|ECC|HBM|PCIe|MIG"
    r"|fabric ?manager|infiniband|RDMA|mlx\d\w*|ib\d|gres|slurm\w*|nhc|LnkSta|Unknown Error"
    r"|NPUs?|HPUs?|ROCm\w*|GeForce|Quadro|Radeon|[GR]TX|bus bandwidth|ipmi\w*|BMC)\b|nvidia|cuda",
    re.IGNORECASE,
)
# whose accelerators a text is about, by the words and forms of the tools
_VENDORS = tuple(
    (vendor, re.compile(pattern))
    for vendor, pattern in (
        (None, r"(?i:nvidia|nvml|nvrm|cuda\b|geforce|quadro|\b[GR]TX\b)|\bXid\b|\bNVLink"),
        ("AMD", r"(?i:\b(?:rocm|amdgpu|amd-smi|radeon|instinct))|\bGPU\[\d+\]\s*:"),
        ("Intel", r"(?i:\b(?:xpu-smi|xpumanager|i915|level[ -]zero|intel\b.{0,30}\b(?:GPU|Max|Flex|Arc)\b))"),
        ("Intel Gaudi", r"(?i:\b(?:hl-smi|habana|gaudi))"),
        ("Huawei", r"(?i:\b(?:npu-smi|ascend|hccl|hccn))"),
        ("AWS", r"\b(?:neuron-(?:ls|top|monitor)|NeuronCore|trainium|inferentia)"),
    )
)
# at which terminals break a line; a sentence that people break goes on in lower case
_WIDTHS = (80, 100, 120, 132, 160)
_SENTENCE_ENDS = (".", ":", ";", "!", "?", "|")
# a tool's own good verdict at the end of a line: "| PCIe | Pass - All |"
_WELL = re.compile(
    r"(?:[|:=]|\.\.|[ \t]{2})[ \t]?(?:PASS(?:ED)?|Pass(?:ed)?|Healthy|HEALTHY|SUCCESS)\b"
    r"(?: ?- ?All)?[\s|.]*$"
)
# a bad one that is a cell, or follows a colon or a device: "GPU 0 FAIL | GPU 1 | PASS"; not "| GPU LOST | PASS |"
_UNWELL = re.compile(
    r"(?:^|[|:=,;]\s{0,4}|\b(?:GPU ?|NVLink ?|Link ?|mlx\d_)\d{1,3}[ \t]+(?:[A-Z]+_)?)"
    r"(?:FAIL(?:ED|URES?)?|Fail(?:ed|ure)?|FAULTY?|BAD|DEGRADED|UNHEALTHY|Unhealthy|ERROR|LOST|NOK"
    r"|(?:NOT|Not) (?:OK|HEALTHY|Healthy))"
    r"(?!\s*[|:=]\s*(?:0|no|none|false)\b)(?=\s*(?:[|,;)]|$)|\s+(?:GPU|NVLink|Link|mlx\d_) ?\d)"
)
# of several GPUs in a line, what is said of each
_EACH_GPU = re.compile(r"\bGPU ?#?\d{1,3}\s*(?:[:=|]| - )\s*(?!GPU\b)([A-Za-z]+)(?=\s*[,;|]|\s*$|\s+GPU\b)")
_GOOD_WORD = re.compile(r"(?i)(?:pass(?:ed)?|ok|okay|healthy|success|good|up|active|idle|skip(?:ped)?|none|n)")
# in its place: "| GPU 3 | FAULT |", "GPU 1: not ok"
_OTHER_VERDICT = re.compile(r"(?:[|:=]|\.\.|[ \t]{1,2})[ \t]*(?:-|[A-Za-z]+(?: ?-? ?[A-Za-z]+){0,2})[\s|.]*")
# a warning that names neither a device nor a known error is kept only if it is about one of these
_GRAVE = re.compile(r"(?i)\b(?:cuda (?:error|failure)|nvlink|nvswitch|ecc|xid|fabric)\b")
# more lines of prose than this, and few of them bad news, or headings and tables: a page that writes about errors
_PAGE_LINES, _PAGE_SHARE = 20, 5
_MARKED_LINES, _PAGE_MARKS = 4, 4
_PAGE_MARK = re.compile(r"#(#{1,3})? \w")
_PAGE_TABLE = re.compile(r"\|(?: ?:?-{3,}:? ?\|){3,}")
_PAGE_ROW = re.compile(r"\|(?:[^|]*\|){3}")
_PROSE = re.compile(r"(?:\b[a-z]{1,20}\b[ ,;'\"()/-]{1,3}){5}")
# "It happens on GPU 0", "only on GPU 2": a sentence of its own that says where
_WHERE = re.compile(
    r"(?i)(?:^|[.!?;] +|, +(?:and )?)(?:(?:and|but|so|now) )?"
    r"(?:(?:it|this|that|(?:the|this) (?:problem|issue|error|fault|failure)) "
    r"(?:(?:only|always|just|also|still|keeps?) ){0,2}"
    r"(?:happen(?:s|ed|ing)?|occur(?:s|red|ring)?|appear(?:s|ed)?|shows? up|is(?: seen)?) (?:only )?"
    r"|(?:it['’]s )?(?:only|always|just) )"
    r"(?:on|with|at|for) (?:the |my |our )?(?P<gpu>GPU ?#?\d{1,3})\b"
    r"(?=\W*$|[.;!] |, (?!(?:and |or )?(?:GPU ?)?#?\d)| (?:of|in|but|since|after|when|while|every)\b)"
)
# names, and nouns that a command may look for: "systemctl reset-failed", "journalctl gpu error"
_OF_A_COMMAND = re.compile(r"\w+[-.][\w.-]+|(?i:\b(?:errors?|exceptions?|faults?|failures?|crash|panic|fatal)\b)")
_OWN_VERDICT = re.compile(r"\b(?:FAIL(?:ED)?|FAULTY)\W*$")
_FRAME = re.compile(r'\s*File "[^"]{1,400}"(?:, line \d|$)')


class TextStatements:
    """Collects the statements of one text, line by line; a page that writes about errors says nothing."""

    def __init__(self, file: str = "") -> None:
        self._file = file
        self._no_news: set[str] = set()  # forms of lines
        self._kept: dict[tuple[object, ...], Reported] = {}
        self._before = (0, "", "")  # number, line and text of the line before
        self._records = Records()
        self._verdicts: dict[str, Reported] = {}  # of a tool, in lines that name nothing of a node
        self._named: set[tuple[int | None, str | None]] = set()
        self._where: set[int | None] = set()
        self._prose_lines = self._well_lines = 0
        self._marks: Counter[str] = Counter()  # one # alone may be root's prompt
        self._vendors: list[str | None] = []
        self._well = Reported("")
        self._well_forms: set[str] = set()  # what stands before a good verdict
        self._unread: list[str] = []  # lines without a statement or a good verdict
        self._doubtful: list[str] = []  # lines with a good verdict, and without one for something else in them
        self._of_a_node = self._tables = False

    def offer(self, line: str, number: int) -> None:
        """Look at a line that no reader took; of a longer one than any message, at its beginning.

        After as many different statements as are kept a text is a log of errors; its check says that not all are shown.
        """
        if len(self._kept) >= MOST_STATEMENTS:
            return
        record, lines = self._records.offer(number, line[:MOST_TEXT])
        if record and (statement := statement_of_record(lines[0][0], record)) is not None:
            self._of_a_node = self._of_a_node or any(OF_A_NODE.search(text[:_LONGEST_FORM]) for _, text in lines)
            self._keep(statement)
            return
        for each, text in lines:
            self._offer(text, each)

    def offer_command(self, line: str, number: int) -> None:
        """Look at a line that seems to be a command: one that may be a sentence of bad news is unknown."""
        form = line[:_LONGEST_FORM].translate(ONE_DIGIT)
        if not self._no_news.isdisjoint((form, line)) or len(self._kept) >= MOST_STATEMENTS:
            return
        bare = _OF_A_COMMAND.sub("-", line)
        is_bad_news = form_of(bare) is not None or find_label(bare) is not None
        if len(self._no_news) < _MOST_FORMS:
            self._no_news.add(line if is_bad_news else form)
        if is_bad_news and (statement := statement_of(number, Origin(), line)):
            self._keep(statement, perhaps=True)

    def end(self) -> None:
        """Look at the lines of a record that did not end."""
        for number, line in self._records.rest():
            self._offer(line, number)

    def _offer(self, line: str, number: int) -> None:
        form = line[:_LONGEST_FORM].translate(ONE_DIGIT)
        if form in self._no_news:
            return
        origin, text = stripped(unmarked(with_short_numbers(line)))
        if not text or text.isspace():
            return
        beginning = text[:_LONGEST_FORM]
        self._look_for_a_page(line, beginning)
        if text.startswith("    ") and self._before[0] == number - 1 and _FRAME.match(self._before[2]):
            origin = Origin()  # the source line of a frame has the level of its traceback
        if "gpu" in beginning.lower():
            self._where |= {about(found["gpu"]).gpu_index for found in _WHERE.finditer(beginning)}
        statement = self._wrapped(line, text, number) or statement_of(number, origin, text)
        self._before = number, line, text
        self._of_a_node = self._of_a_node or OF_A_NODE.search(beginning) is not None
        self._vendors += [v for v, names in _VENDORS if v not in self._vendors and names.search(beginning)]
        if statement is None:
            self._note(text, number)
            if len(self._no_news) < _MOST_FORMS and "GPU" not in text and not _FRAME.match(text):
                self._no_news.add(form)
        else:
            self._keep(statement, of_a_rank=origin.rank is not None or origin.local_rank is not None)

    def _look_for_a_page(self, line: str, beginning: str) -> None:
        """Count what shows a page: prose, headings, tables."""
        self._prose_lines += _PROSE.search(beginning) is not None
        if mark := _PAGE_MARK.match(line):
            self._marks["##" if mark[1] else "#"] += 1
        self._tables = self._tables or _PAGE_TABLE.match(line) is not None

    def _wrapped(self, line: str, text: str, number: int) -> Statement | None:
        """The statement of this line and the one before, if only both together have the words of a known error."""
        above, whole, first = self._before
        broken = len(whole) in _WIDTHS
        if above != number - 1 or not (broken or (text[0].islower() and not first.endswith(_SENTENCE_ENDS))):
            return None
        joined = first + text if broken else f"{first} {text.lstrip()}"
        if known_error(joined) is None or known_error(first) is not None or known_error(text) is not None:
            return None
        self._kept = {key: each for key, each in self._kept.items() if each.line != above}
        return statement_of(above, Origin(), joined)

    @property
    def has_any(self) -> bool:
        """Whether anything was said that may count."""
        return bool(self._kept)

    @property
    def _statements(self) -> tuple[Reported, ...]:
        return (*self._kept.values(), *(self._verdicts.values() if self._of_a_node else ()))

    def _is_on_a_page(self, reported: Reported) -> bool:
        return (self.is_a_page and _is_prose(reported)) or (self._tables and bool(_PAGE_ROW.match(reported.text)))

    @property
    def said(self) -> tuple[Reported, ...]:
        """What was said about the node, each once, in the order of the text."""
        retained = [each for each in self._statements if not self._is_on_a_page(each)]
        is_well = self._well_lines > 0 and self._of_a_node
        retained += [
            replace(each, loudness="unread", text=f"a page that writes about errors says: {each.text}")
            for each in self._statements
            if self._is_on_a_page(each) and each.effect == "hardware" and each.names_a_gpu
        ][:1]
        beside_good = (*self._doubtful[:1], *filter(self._is_beside_good, self._unread))
        if not retained and is_well and (unread := next(iter(beside_good), None)):
            text = f"a tool's own verdict is good, and more is said that was not understood: {unread.strip()}"
            return (replace(self._well, loudness="unread", text=clipped(text)),)
        if not retained and is_well:
            return (replace(self._well, count=self._well_lines),)
        return tuple(self._with_only_gpu(each) for each in retained)

    @property
    def is_a_page(self) -> bool:
        """Whether it is a manual or the like, which writes about errors: none happened."""
        few = len(self._kept) * _PAGE_SHARE < self._prose_lines
        marks = self._marks.total() if self._marks["##"] else 0
        marked = marks >= _PAGE_MARKS and self._prose_lines >= _MARKED_LINES
        return marked or (self._prose_lines >= _PAGE_LINES and few)

    def _is_beside_good(self, text: str) -> bool:
        """Whether a line says more than a tool's good verdicts: a sentence, or another verdict in their place."""
        form = text.translate(ONE_DIGIT)
        other = (
            form[len(well) :] for well in self._well_forms if form.startswith(well) and re.search("[a-zA-Z]", well)
        )
        return _PROSE.search(text) is not None or any(_OTHER_VERDICT.fullmatch(rest) for rest in other)

    def _note(self, text: str, number: int) -> None:
        named = about(text)
        self._named.add((named.gpu_index, named.bus_id))
        beginning = text[:_LONGEST_FORM]
        if well := _WELL.search(beginning):
            self._well_lines += 1
            if not self._doubtful and _says_more_than_good(text):
                self._doubtful.append(beginning)
            if self._well_lines == 1:
                self._well = Reported(clipped(text.strip()), loudness="ok", line=number, file=self._file)
            if len(self._well_forms) < _MOST_FORMS:
                self._well_forms.add(text[: well.start()].translate(ONE_DIGIT))
        elif len(self._unread) < MOST_STATEMENTS:
            self._unread.append(beginning)

    def _keep(self, statement: Statement, *, of_a_rank: bool = False, perhaps: bool = False) -> None:
        self._named.add((statement.about.gpu_index, statement.about.bus_id))
        reported = _reported(statement, self._file, of_a_rank=of_a_rank)
        if perhaps:
            reported = replace(reported, loudness="unread", text=f"a command, or bad news: {reported.text}")
        named = reported.names_a_gpu or reported.device is not None or reported.label is not None
        named = named or missing_gpus(reported.text) is not None
        about_node = _GRAVE if reported.loudness == "warning" else OF_A_NODE
        if not named and about_node.search(reported.text) is None:
            self._of_a_node = self._of_a_node or OF_A_BMC.match(reported.text) is not None
            own = reported.form in ("verdict", "event") or _OWN_VERDICT.search(reported.text)
            if own and len(self._verdicts) < MOST_STATEMENTS:
                self._verdicts.setdefault(reported.text.translate(ONE_DIGIT), reported)
            return
        what = reported.label or reported.text.translate(ONE_DIGIT)[-200:]
        key = (what, reported.gpu, reported.bus_id, reported.uuid, reported.device, reported.xid)
        if before := self._kept.get(key):
            reported = replace(before, count=before.count + 1)
        self._kept[key] = reported

    def _with_only_gpu(self, reported: Reported) -> Reported:
        """The statement with its vendor, and the GPU that other lines name, if they name no other one."""
        if len(self._vendors) == 1:
            reported = replace(reported, vendor=self._vendors[0])
        if reported.names_a_gpu:
            return reported
        if len(self._where) == 1 and reported.form == "sentence" and reported.device is None:
            return replace(reported, gpu=next(iter(self._where)), only_gpu=reported.effect != "hardware")
        if reported.effect != "hardware":
            return reported
        gpus = {gpu for gpu, _ in self._named if gpu is not None}
        buses = {bus for _, bus in self._named if bus is not None}
        if len(gpus) > 1 or len(buses) > 1 or not (gpus or buses):
            return reported
        return replace(reported, gpu=next(iter(gpus), None), bus_id=next(iter(buses), None), only_gpu=True)


def from_tool(tool: str, text: str, loudness: Loudness = "error", *, xid: int | None = None) -> Reported:
    """What a reader found a tool to report itself; device and label are those that the text names."""
    statement = Statement(line=0, message=text, form="verdict", severity="error", kind="cause", about=about(text))
    made = _reported(statement, "")
    label = known_error(text)
    return replace(made, said_by=tool, loudness=loudness, xid=xid or made.xid, label=label.label if label else None)


def worst_first(reported: Iterable[Reported]) -> tuple[Reported, ...]:
    """The statements without duplicates; a good verdict counts only if nothing else is said."""
    unique = tuple(dict.fromkeys(reported))
    return tuple(each for each in unique if each.loudness != "ok") or unique[:1]


def _reported(statement: Statement, file: str, *, of_a_rank: bool = False) -> Reported:
    named, known, code = statement.about, known_error(statement.message), xid_code(statement.message)
    port = f" port {named.port}" if named.port is not None else ""
    past = statement.form == "sentence" and is_past(statement.message)
    lacks = not of_a_rank and missing_gpus(statement.message) == "missing"  # a rank may be given fewer
    return Reported(
        # a tab is a gap here, and would be printed as an escape
        text=("told as past, and not whether it is over: " if past else "")
        + clipped(statement.message.replace("\t", " ")),
        said_by=clipped(statement.program or ""),
        loudness="unread" if past else statement.severity,
        kind=statement.kind,
        form=statement.form,
        label=statement.label,
        effect=known.effect if known else "hardware" if code is not None or lacks else None,
        plain=known.plain if known else "a GPU of the node is gone" if lacks else "",
        xid=code,
        gpu=named.gpu_index,
        bus_id=named.bus_id,
        uuid=named.uuid,
        device=named.device_file or (f"{named.adapter}{port}" if named.adapter else None),
        line=statement.line,
        file=file,
    )


def _says_more_than_good(text: str) -> bool:
    """Whether a line that ends in a good verdict has another one in it."""
    good = [_GOOD_WORD.fullmatch(word) is not None for word in _EACH_GPU.findall(text)]
    return _UNWELL.search(text) is not None or (True in good and False in good)


def _is_prose(reported: Reported) -> bool:
    """Whether a person wrote it."""
    return reported.form == "sentence" or _PROSE.search(reported.text) is not None
