"""JSON that programs print, on one line or over several: a record is one statement, by its own verdict and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.forms import Reading

_DEEPEST, _MOST_FIELDS, _MOST_LINES, _MOST_OPEN = 4, 200, 400, 20
_KEY = r"\"(?P<key>[\w. /-]{1,60})\"\s?:\s?"
_OPENS = lazy_pattern(rf"(?:\}},\s?)?(?:{_KEY})?\[?\s?\{{")
_SCALAR = lazy_pattern(rf"{_KEY}(?P<value>\"(?:[^\"\\]|\\.){{0,4096}}\"|-?\d[\d.eE+-]{{0,40}}|true|false|null),?")
_JSON_GOES_ON = ('"', "[", "]", "}", "{", "-", *"0123456789tfn")
_LEVEL_KEYS = ("level", "severity", "lvl", "levelname", "loglevel", "log_level")
_VERDICT_KEYS = ("status", "result", "verdict", "outcome", "state", "health", "conclusion")
_COUNT_KEYS = ("failed", "failures")
_SPEAKER_KEYS = ("module", "logger", "component", "program", "service")
_TITLE_KEYS = ("event", "test", "check", "name")
_WORK_KEYS = ("job", "job_id", "task", "pod", "container")
_PLACE_KEYS = ("gpu", "gpu_id", "gpu_index", "gpu_uuid", "uuid", "bus_id", "pci", "host", "hostname", "node")
_BAD = lazy_pattern(r"(?i)(?:fail(?:ed|ure)?|faulty|unhealthy|degraded|fatal|error|critical|not ?ok)")
_LOUD = lazy_pattern(r"(?i)(?:err(?:or)?|fatal|critical|crit|panic|emerg\w*|alert|severe)")
_WARNING = lazy_pattern(r"(?i)warn(?:ing)?")
_RECOVERED = re.compile(  # the program, from what failed
    r"(?i)\b(?:retry|retrying|retries|retried|ignor(?:ed|ing)|recovered|expected failure|xfail\w*|skipped)\b"
)

Record = Mapping[str, object]
_Field = tuple[str, object]


def record_in(text: str) -> Record | None:
    """The JSON object, or the list of objects, that is the whole line; None for any other line."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")) and not (text.startswith("[{") and text.endswith("}]")):
        return None
    try:
        found = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else {"of": found}


def read_record(record: Record) -> tuple[Reading | None, str, str | None]:
    """What a record says by its own verdict; its sentences, or all that it holds; and its level, as a prefix has it.

    >>> read_record({"level": "info", "event": "probe end", "status": "failed", "gpu": 3})[0].message
    'GPU 3: probe end: status: failed'
    """
    parts = list(_parts(record))
    fields = [field for part in parts for field in part]
    word = _first(fields, _LEVEL_KEYS)
    level = "ERROR" if _LOUD.fullmatch(word) else "WARNING" if _WARNING.fullmatch(word) else None
    bad = next((part for part in parts if any(_is_bad(*field) for field in part)), None)
    if bad is None or _RECOVERED.search(_sentences(fields)):
        held = {key: value for key, value in fields if value}  # false or 0: it did not happen
        return None, _sentences(fields) or msgspec.json.encode(held).decode(), level
    failure = _failure(bad if bad is parts[0] else [*bad, *parts[0]])
    return Reading("verdict", "warning" if level == "WARNING" else "error", failure), "", level


def _failure(fields: list[_Field]) -> str:
    """What failed, in words: the speaker, the places, a title, the sentences, the job and the verdict itself."""
    work = next((f"{key} {value} failed" for key, value in fields if key in _WORK_KEYS and value), "")
    title = next((f"{v}" for k, v in fields if k in _TITLE_KEYS and isinstance(v, str) and not _is_said(k, v)), "")
    places = ", ".join(dict.fromkeys(_place(key, value) for key, value in fields if key in _PLACE_KEYS))
    verdict = next(f"{key}: {value}" for key, value in fields if _is_bad(key, value))
    message = (_first(fields, _SPEAKER_KEYS), places, title, _sentences(fields), work, verdict)
    return ": ".join(filter(None, message))


def _parts(record: Record, depth: int = 0) -> Iterator[list[_Field]]:
    """The plain fields of a record, then those of each record in it; names in lower case."""
    items = list(record.items())[:_MOST_FIELDS]
    yield [(str(key).lower(), value) for key, value in items if isinstance(value, (str, int, float))]
    inner = [each for _, value in items for each in (value[:_MOST_FIELDS] if isinstance(value, list) else [value])]
    for each in inner if depth < _DEEPEST else ():
        if isinstance(each, dict):
            yield from _parts(each, depth + 1)


def _sentences(fields: list[_Field]) -> str:
    return ": ".join(
        dict.fromkeys(value.strip() for key, value in fields if isinstance(value, str) and _is_said(key, value))
    )


def _is_bad(key: str, value: object) -> bool:
    if key in _COUNT_KEYS:
        return isinstance(value, int) and value is not False and value > 0
    return key in _VERDICT_KEYS and isinstance(value, str) and _BAD.fullmatch(value.strip()) is not None


def _is_said(key: str, value: str) -> bool:
    return " " in value.strip() and key not in (*_LEVEL_KEYS, *_PLACE_KEYS) and not value[:4].isdigit()


def _place(key: str, value: object) -> str:
    text = str(value)
    return f"GPU {text}" if key.startswith("gpu") and text.isdigit() else text


def _first(fields: list[_Field], keys: tuple[str, ...]) -> str:
    return next((value.strip() for key, value in fields if key in keys and isinstance(value, str)), "")


class _Open(msgspec.Struct):
    fields: dict[str, object]
    lines: list[tuple[int, str]]


class Records:
    """Joins the lines of records that a program printed over several: `offer` each line in order."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    def offer(self, number: int, line: str) -> tuple[Record | None, list[tuple[int, str]]]:
        """The record that ends with this line, if one does, and the lines that no open record holds back any more.

        The lines of a record are given back with it, or without it if it turns out to be none.
        """
        text = line.strip()
        if not self._open and not _OPENS.fullmatch(text):
            return None, [(number, line)]
        if self._open and (text[:1] not in _JSON_GOES_ON or sum(len(each.lines) for each in self._open) > _MOST_LINES):
            return None, [*self.rest(), (number, line)]
        record: Record | None = None
        given: list[tuple[int, str]] = []
        if text[:1] == "}" and self._open:
            ended = self._open.pop()
            record, given = ended.fields, [*ended.lines, (number, line)]
        elif self._open and (field := _SCALAR.fullmatch(text)):
            self._open[-1].fields[field["key"]] = _value(field["value"])
        if text[-1:] == "{" and len(self._open) < _MOST_OPEN:
            self._open.append(_Open({}, [] if given else [(number, line)]))
        elif self._open and not given:
            self._open[-1].lines.append((number, line))
        return record, given

    def rest(self) -> list[tuple[int, str]]:
        """The lines of records that did not end."""
        lines = [line for each in self._open for line in each.lines]
        self._open = []
        return lines


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except ValueError:
        return text
