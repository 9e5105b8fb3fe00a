"""Facts that gpudoctor wrote (facts JSON or YAML, and reports), read from untrusted files."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import MOST_GPUS, Loaded, SourceError
from gpudoctor.facts.captures.handwritten import refuse_contradictions, without_unknown_keys
from gpudoctor.facts.captures.leaves import plausible
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import NOT_IN_FILE, NOT_READ, fill, known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    import yaml

FACTS = "gpudoctor.facts/1"
REPORT = "gpudoctor.report/1"
_YAML_SCHEMA = re.compile(r"^[\"']?schema[\"']?\s*:\s*[\"']?gpudoctor\.", re.MULTILINE)
_YAML_SECTION = re.compile(
    r"^(?:gpus|driver|host|kernel_log|environment|software|network): *(?:[\[{].*)?$", re.MULTILINE
)
_YAML_END = re.compile(r"^\.\.\.\s*\Z", re.MULTILINE)
_HALF_PAIR = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_DEEPEST = 32  # facts nest 6 levels deep
_MOST_YAML_EVENTS = 2_000_000
_NUMBER = re.compile(r"[-+0-9:._]+")
_LONGEST_NUMBER = 100
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class _Schema(msgspec.Struct):
    schema: str = ""


class _Report(msgspec.Struct):
    facts: Node | None = None
    measurements: Measurements | None = None


def is_yaml_facts(head: str) -> bool:
    """Whether the text looks like facts in YAML, judged by its `schema` key."""
    return _YAML_SCHEMA.search(head) is not None


def lacks_schema(head: str) -> bool:
    """Whether the text is in the form of facts in YAML, but without the line that says so."""
    return _YAML_SECTION.search(head) is not None


def load_json(data: bytes) -> Loaded:
    """Read facts JSON or a report. Raise SourceError with the position ($.gpus[2].index) and what is wrong."""
    try:
        text = data.decode("utf-8-sig")
        schema = msgspec.json.decode(text, type=_Schema).schema
        _check_schema(schema)
        if schema == FACTS:
            node = msgspec.json.decode(text, type=Node)
            by_hand = node.source.kind == "simulated"
            return Loaded(_written(without_unknown_keys(msgspec.json.decode(text), node) if by_hand else node))
        report = msgspec.json.decode(text, type=_Report)
    except UnicodeDecodeError as error:
        raise SourceError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise SourceError("nested too deeply") from None
    except msgspec.ValidationError as error:
        raise SourceError(str(error)) from None
    except msgspec.DecodeError as error:
        # msgspec also reports half a surrogate pair, as in "\ud800", as truncated
        if "truncated" in str(error) and not _HALF_PAIR.search(text):
            raise SourceError(f"cut off: {error}, in line {text.count(chr(10)) + 1}") from None
        raise SourceError(f"broken JSON: {error}") from None
    if report.facts is None:
        raise SourceError("a report without facts: make it with `gpudoctor check --json --include-facts`")
    return Loaded(checked(report.facts), report.measurements)


def load_measurements(data: bytes) -> Measurements:
    """Read the measurements of an acceptance run. Raise SourceError."""
    try:
        return msgspec.json.decode(data, type=Measurements)
    except RecursionError:
        raise SourceError("measurements: nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SourceError(f"measurements: {error}") from None


def load_yaml(data: bytes) -> Loaded:
    """Read facts in YAML, plain data only. Raise SourceError for aliases, tags, deep nesting and wrong types.

    Aliases are refused altogether: facts do not need them, and "billion laughs" files are built from them.
    """
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = data.decode("utf-8-sig")
        _check_plain(yaml.parse(text, Loader=loader))
        raw = yaml.load(text, Loader=loader)
        schema = raw.get("schema") if isinstance(raw, dict) else None
        if schema == REPORT:
            raise SourceError("a report is read as JSON, not as YAML")
        _check_schema(str(schema))
        node = _written(without_unknown_keys(raw, msgspec.convert(raw, Node)))
        _check_end(text, raw)
        return Loaded(node)
    except UnicodeDecodeError as error:
        raise SourceError(f"not UTF-8 at byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if mark and "nesting depth" in str(error.problem):  # libyaml's own limit, reached before _check_plain's
            raise SourceError(f"line {mark.line + 1}: nested deeper than {_DEEPEST} levels") from None
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise SourceError(f"broken YAML at {place}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise SourceError(f"broken YAML: {' '.join(str(error).split())[:200]}") from None
    except (RecursionError, ValueError, TypeError, OverflowError) as error:
        # msgspec.ValidationError is a ValueError; PyYAML's constructors raise the others
        quote = " (quote what looks like a number or date)" if "Expected `str" in str(error) else ""
        raise SourceError(f"{' '.join(str(error).split())[:300]}{quote}") from None


def _check_end(text: str, raw: dict[str, Any]) -> None:
    """Raise SourceError if the YAML may be cut off: a file cut between two lines is valid YAML with fewer facts.

    Facts that gpudoctor wrote end with `storage`, also if a tool sorts the keys: if it is there, nothing that is
    judged can be missing. Other facts need the end mark.
    """
    if _YAML_END.search(text) or (text.endswith("\n") and "storage" in raw):
        return
    line = text.count("\n") + 1
    reported = "the last line has no end" if not text.endswith("\n") else "nothing shows that it is whole"
    raise SourceError(
        f"line {line}: cut off? {reported}; if it is whole, say so in a last line that is YAML's end mark: "
        "three dots (...)"
    )


def _check_plain(events: Any) -> None:
    depth = 0
    for count, event in enumerate(events):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise SourceError(f"line {line}: YAML aliases are refused")
        if getattr(event, "tag", None) is not None:
            # Python objects are not data, and YAML's built-in tags make PyYAML's constructors raise arbitrary errors
            raise SourceError(f"line {line}: YAML tags are refused ({event.tag.rpartition(':')[2][:40]})")
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0]:  # not in quotes
            _check_scalar(event.value, line)
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        if depth > _DEEPEST:
            raise SourceError(f"line {line}: nested deeper than {_DEEPEST} levels")
        if count > _MOST_YAML_EVENTS:
            raise SourceError(f"line {line}: too many values for facts")


def _check_scalar(value: str, line: int) -> None:
    """Raise SourceError for values that PyYAML builds in quadratic time: base-60 numbers and merge keys."""
    if len(value) > _LONGEST_NUMBER and _NUMBER.fullmatch(value):
        raise SourceError(f"line {line}: a number of {len(value)} characters: put text in quotes")
    if value == "<<":
        raise SourceError(f"line {line}: YAML merge keys are refused")


def _check_schema(schema: str) -> None:
    if schema in (FACTS, REPORT):
        return
    if schema.startswith("gpudoctor."):
        raise SourceError(f"its schema is {schema[:60]!r}; this version reads {FACTS} and {REPORT}")
    raise SourceError(f"neither facts nor a report: the key 'schema' must be {FACTS!r} or {REPORT!r}")


def _written(node: Node) -> Node:
    """The facts of a file. A simulated node may be written by hand: what no machine can show is refused there.

    Of its memory figures one is enough beside the total.
    """
    if node.source.kind != "simulated":
        return checked(node)
    for place, gpu in enumerate(node.gpus):
        if gpu.bus_id_read and not _BUS_ID.fullmatch(gpu.bus_id):
            form = "it must be in the form 0000:3b:00.0, in small letters and quotes"
            raise SourceError(f"bus_id is {gpu.bus_id[:40]!r}: {form} - at `$.gpus[{place}].bus_id`")
    refuse_contradictions(node)
    return checked(replace(node, gpus=tuple(map(_with_whole_memory, node.gpus))))


def _with_whole_memory(gpu: Gpu) -> Gpu:
    total, used, free = (known(size) for size in (gpu.memory_total_mib, gpu.memory_used_mib, gpu.memory_free_mib))
    held = known(gpu.memory_reserved_mib) or 0
    if total is not None and free is None and used is not None and gpu.memory_free_mib == NOT_READ:
        return replace(gpu, memory_free_mib=max(total - held - used, 0))
    if total is not None and used is None and free is not None and gpu.memory_used_mib == NOT_READ:
        return replace(gpu, memory_used_mib=max(total - held - free, 0))
    return gpu


def checked(node: Node) -> Node:
    """Check what the types cannot: unique GPU indices, bus ids and UUIDs, plausible numbers. Raise SourceError.

    Sections and leaves that the file lacks, of the node and of its GPUs, could not be read.
    """
    if len(node.gpus) > MOST_GPUS:
        raise SourceError(f"more than {MOST_GPUS} GPUs: not the facts of one machine - at `$.gpus`")
    seen: set[tuple[str, object]] = set()
    for place, gpu in enumerate(node.gpus):
        for field, name, value in (
            ("index", "index", gpu.index), ("bus_id", "bus id", gpu.bus_id), ("uuid", "UUID", known(gpu.uuid)),
        ):  # fmt: skip
            if value is not None and value != "" and (field, value) in seen:
                raise SourceError(f"{name} {str(value)[:60]} is there twice - at `$.gpus[{place}].{field}`")
            seen.add((field, value))
    gpus = tuple(fill(gpu, NOT_IN_FILE) for gpu in node.gpus)
    return plausible(replace(fill(node, NOT_IN_FILE), gpus=gpus, source=node.source))
