"""`ps` and `top`: programs of the driver that wait in the kernel, as they do if the driver or a GPU does not answer."""

from __future__ import annotations

import re

from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.reported import Loudness

_MOST_NAMED = 8
_PROCESS = re.compile(
    r"\s*(?:[\w.+-]{1,32}\s+)?(?P<pid>\d{1,8})\s(?:[^/\[]{0,80}\s)?(?P<state>[DIRSTXZt][<LNls+]{0,4})\s(?P<rest>.{1,300})"
)
_OF_DRIVER = re.compile(r"(?:^|[\s/\[(])(nvidia-[\w.-]+|nv-\w+|dcgmi?|nv-hostengine|dcgm-exporter|rocm-smi|gpu_burn)\b")


@text_reader(
    "ps",
    r"\s*(?:F +)?(?:USER|UID|PID|S)\s(?=.*\bPID\b|.*\bPPID\b)?.*\b(?:CMD|COMMAND)\s*$",
    _PROCESS.match,
    after=r"(?:^|[|;&] ?|sudo )ps\b",
)
def read_processes(block: Block) -> Part:
    """Those in state D. One may be on its way through the driver: that is unknown; several at once hang."""
    waiting = {}
    for line in block.lines:
        found = _PROCESS.match(line)
        program = _OF_DRIVER.search(found["rest"]) if found and found["state"][0] == "D" else None
        if found and program:
            waiting[found["pid"]] = program[1]
    if not waiting:
        return Part(notes=("ps: no program of the driver waits in the kernel",))
    named = ", ".join(f"{name} (pid {pid})" for pid, name in list(waiting.items())[:_MOST_NAMED])
    loudness: Loudness = "error" if len(waiting) > 1 else "unread"
    text = f"{named} {'wait' if len(waiting) > 1 else 'waits'} in the kernel (state D): does the driver or a GPU not answer?"
    return Part(reported=(from_tool("ps", text, loudness),))
