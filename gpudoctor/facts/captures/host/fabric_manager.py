"""The fabric manager's service in `systemctl status` and in the journal, and its own log file."""

from __future__ import annotations

import re

from msgspec.structs import replace

from gpudoctor.facts.captures.reader import Block, Part, TextReader, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.driver import DRIVER_VERSION, FabricManager
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.facts.model.node import Node

MOST_ERRORS = 20
_UNIT = re.compile(r"(?:[●○×↻*x] )?nvidia-(fabricmanager|persistenced)\.service - ")
_NOT_FOUND = re.compile(
    r"(?:Unit|Failed to \w+) nvidia-(fabricmanager|persistenced)\.service"
    r"(?: could not be found|: Unit .{0,80} not found)"
)
# `journalctl -u nvidia-fabricmanager`: "Jul 01 11:00:05 dgx2 nv-fabricmanager[3312]: ..." and systemd's own lines; the
# month in any language ("Okt", "févr.", "11月")
_STAMPED = r"(?:(?:[^\W\d_]{3,5}\.?|\d{1,2}月) [ \d]?\d [\d:]{8}(?:\.\d{1,9})?|\d{4}-\d\d-\d\dT\S{8,30}) \S+ "
_UNIT_MORE = re.compile(
    r"\s+[A-Z][\w /]{1,20}: |\s+[├└│]|\s+\d{2,8} /|(?:Hint|Warning|Notice): "
    # the last lines of the unit's journal, but no other log lines
    rf"|{_STAMPED}"
    r"(?:systemd|nv-fabricmanager|nvidia-fabricmanager\S{0,20}|nvidia-persistenced)\[\d{1,10}\]: "
)
_SERVICE_NAME = r"(?:nvidia-fabricmanager\.service|NVIDIA fabric manager service)"
_JOURNAL = re.compile(
    rf"{_STAMPED}(?:(?:nv-fabricmanager|nvidia-fabricmanager\S{{0,20}})\[\d{{1,10}}\]: "
    rf"|systemd\[1\]: (?:\w+ |Failed to start ){{0,1}}{_SERVICE_NAME})"
)
_JOURNAL_STATE = re.compile(rf"systemd\[1\]: (Starting|Started|Stopping|Stopped|Failed to start) {_SERVICE_NAME}")
_SCRIPT_STATE = re.compile(r"nvidia-fabricmanager-start\.sh\[\d{1,10}\]: (Started|Stopped) \"")
_JOURNAL_RESULT = re.compile(r"systemd\[1\]: nvidia-fabricmanager\.service: Failed with result '([a-z-]{3,30})'")
_STATE_WORDS = {"Started": "active", "Stopping": "deactivating", "Stopped": "inactive", "Failed to start": "failed"}
_ACTIVE = re.compile(r"\s+Active: ([a-z-]{3,20})(?: \(([^)]{1,60})\))?")
_RESULT = re.compile(r"Result: ([a-z-]{3,30})")
_IS_ACTIVE = re.compile(r"(active|inactive|failed|activating|deactivating|unknown)\s*$")
_IS_ACTIVE_COMMAND = re.compile(r"systemctl is-active nvidia-fabricmanager(?:\.service)?\s*$")
_JOB_FAILED = re.compile(r"(?:Job|A dependency job) for nvidia-fabricmanager\.service failed")
_LOG = re.compile(r"\[[A-Z][a-z]{2} [ \d]?\d \d{4} [\d:]{8}\] \[(DEBUG|INFO|NOTICE|WARNING|ERROR|CRITICAL|FATAL)\] ")
# linear in the length of the line because of (?<!\S)
_OWN_LINE = re.compile(r"(?<!\S)\S+ (?:nv-fabricmanager|nvidia-fabricmanager-start\.sh)\[\d{1,10}\]: (.{1,300})")
# Words that mark an error in a line without a level; source: the messages in the Fabric Manager user guide
_ERROR_WORDS = re.compile(
    r"\b(?:fail(?:ed|ure)|error|abort|don't match|does ?n[o']t match|not supported|fatal|timed? ?out)\b"
    # "don't match with driver version", cut off at the width of a terminal
    r"|interface version \d[\d.]* do",
    re.IGNORECASE,
)
# the configuration that it prints when it starts: "Option when facing NVSwitch failure = 0"
_SETTING = re.compile(r" = \S*$")
_RUNNING = re.compile(rf"Fabric ?Manager version (?:is )?:? ?({DRIVER_VERSION})", re.IGNORECASE)
# the first line after every start; source: Fabric Manager user guide, log file
_STARTED = re.compile(rf"Fabric Manager version {DRIVER_VERSION} is running")
_INTERFACE = re.compile(rf"interface version ({DRIVER_VERSION}) (?:don't|doesn't|does not) match")


def _begins_service(line: str) -> object:
    return _UNIT.match(line) or _NOT_FOUND.match(line)


@text_reader(
    "systemctl status",
    _begins_service,
    lambda line: _begins_service(line) or _UNIT_MORE.match(line) or _IS_ACTIVE.match(line),
    after=_IS_ACTIVE_COMMAND.pattern,
)
def read_service(block: Block) -> Part:
    """`systemctl status`: the service's state and result, and the errors in its last log lines."""
    service = result = None
    fabric, failed = False, False
    for line in block.lines:
        if begin := (_UNIT.match(line) or _NOT_FOUND.match(line)):
            fabric = begin[1] == "fabricmanager"
            if fabric and _NOT_FOUND.match(line):
                service = "not-found"
        elif fabric and service is None and (active := _ACTIVE.match(line)):
            service = active[1]
            found = _RESULT.search(active[2] or "")
            result = found[1] if found else active[2]
        elif not fabric and (active := _ACTIVE.match(line)) and active[1] == "failed":
            failed = True
        elif service is None and _IS_ACTIVE_COMMAND.search(block.command) and (word := _IS_ACTIVE.match(line)):
            service = word[1]
    part = _part(block.lines, None if service == "unknown" else service, result, NOT_READ)
    if failed:
        part.reported = (from_tool("systemctl", "nvidia-persistenced has failed", "warning"),)
    return part


def _begins_log(line: str) -> object:
    return _LOG.match(line) or _JOURNAL.match(line) or _RUNNING.match(line) or _JOB_FAILED.match(line)


@text_reader("fabric manager log", _begins_log, _begins_log, interleaved=True)
def read_log(block: Block) -> Part:
    """/var/log/fabricmanager.log, and its lines and systemd's in the journal: the state in which its last start ended.

    With the errors of that start; a log of its own that has none tells that there were none. The answer of `systemctl
    start` is an error and no state: the service may have started since.
    """
    lines: list[str] = []
    service = result = None
    for line in block.lines:
        state = _JOURNAL_STATE.search(line) or _SCRIPT_STATE.search(line)
        if state is not None and state[1] == "Starting":
            lines, service, result = [], None, None
        elif state is not None:
            service = _STATE_WORDS[state[1]]
        elif failed := _JOURNAL_RESULT.search(line):
            service, result = "failed", failed[1]
        lines.append(line)
    jobs = tuple(dict.fromkeys(line[:300] for line in block.lines if _JOB_FAILED.match(line)))
    return _part(lines, service, result, () if any(map(_LOG.match, block.lines)) else NOT_READ, jobs)


def _part(
    lines: list[str], service: str | None, result: str | None, none: tuple[()] | Missing, jobs: tuple[str, ...] = ()
) -> Part:
    """The service with its version, and the errors since the last start; `none`: what it means that there is none."""
    version: str | Missing = NOT_READ
    errors: list[str] | None = None
    for line in lines:
        if found := (_RUNNING.search(line) or _INTERFACE.search(line)):
            version = found[1]
        if _STARTED.search(line):
            errors = None
        own = _OWN_LINE.search(line)
        # with a level also in the journal, if it logs to the console instead of its file
        level = _LOG.match(own[1] if own is not None else line)
        if level is not None:
            bad = level[1] in ("ERROR", "CRITICAL", "FATAL")
        else:
            bad = own is not None and _ERROR_WORDS.search(own[1]) is not None and _SETTING.search(own[1]) is None
        if bad:
            # without the host name, which precedes the program's name
            errors = [*(errors or []), own[1] if own is not None else line.strip()[:300]][-MOST_ERRORS:]
    reported = none if errors is None and not jobs else (*jobs, *(errors or ()))
    state = {"service": service} if service is not None else {}
    state |= {"result": result} if state and result is not None else {}
    return Part(Node(fabric_manager=FabricManager(version=version, errors=reported, **state)))


def without_failed_jobs(node: Node) -> Node:
    """The node without the answers of `systemctl start`."""
    errors = tuple(error for error in known(node.fabric_manager.errors) or () if not _JOB_FAILED.match(error))
    left = replace(node.fabric_manager, errors=errors or FabricManager().errors)
    return replace(node, fabric_manager=left)


FABRIC_MANAGER_READERS: tuple[TextReader, ...] = (read_service, read_log)
