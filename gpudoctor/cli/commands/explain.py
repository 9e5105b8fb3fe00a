"""`gpudoctor explain`: the page of a check, cause, fault, Xid or line of a log; of any other word, a search."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator

from gpudoctor.cli import options
from gpudoctor.errors import UserError, did_you_mean
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.output import is_terminal, printable, write_stdout

with lazy_imports():
    import pydoc
    import shutil

    from gpudoctor.checks.core import registry
    from gpudoctor.diagnose import causes, one_line
    from gpudoctor.facts.simulated import load
    from gpudoctor.plan import not_planned
    from gpudoctor.report import check_docs, markdown_text
    from gpudoctor.run.findings import run_check
    from gpudoctor.statements import xids

_EXIT_CODES = """# Exit codes

- **0**: no failure
- **1**: a failure; with `--fail-on warn` also a warning
- **2**: gpudoctor could not do its work: bad arguments, an unreadable source, a full disk; no verdict on the node
- **3**: no failure, but something is unknown, or a check named with `--require` gave no verdict
- **128 + n**: ended by signal n, with the partial report

These are those of `check`; `--format nagios` has Nagios's own. Those of another command: `gpudoctor COMMAND --help`.
"""
_EXIT = re.compile(
    r"(?i)(?:exit|return)(?:[ _]?(?:codes?|status))?(?:\W{0,3}?(?P<code>-?\d{1,3}))?|signal (?P<signal>\d{1,2})"
)
_XID = re.compile(r"(?:xid[ :#]*)?(\d{1,5})", re.IGNORECASE)
_WORD = re.compile(r"[a-z0-9]+")
_MOST_WORDS_OF_A_NAME = 3
_ENDING = re.compile(r"(?<=[a-z]{3})(?:ing|ed|es|e|s)$")
_SMALL_WORDS = frozenset(
    ("a", "an", "and", "at", "for", "in", "is", "my", "no", "of", "on", "out", "the", "to", "with")
)
_HOW_BAD = {
    "hardware": "fail: the node needs work by hand",
    "reset": "fail: the GPU is unfit until it is reset",
    "watch": "warn: the GPU works; a person should look",
    "unknown": "warn: not in NVIDIA's catalogue",
    "application": "no fault of the node: a program did it",
    "info": "nothing to do",
}
_HOW_BAD_OF = {
    45: "judged as the Xid that it names as its cause; without one it is no fault of the node",
    63: "nothing to do, unless a row waits for a reset: then warn",
    94: "an error of the GPU's memory, which ended one program; warn, unless the GPU reports that no row waits",
    **dict.fromkeys(range(144, 151), "fail if its line says Fatal, nothing to do if Nonfatal, else warn"),
    154: "fail, unless its line asks for None (pass) or Drain P2P (warn)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id",
        nargs="+",
        metavar="NAME",
        help="a check (pcie.link-width, pcie), a cause (rank_hung), a fault (gpu-lost), an Xid ('Xid 79'), "
        "an exit code ('exit code 137'), a line of a log, or a word",
    )
    options.add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Write the pages that the name stands for, through a pager if they are longer than the terminal.

    Raise UserError if there is none.
    """
    page = _page_of(" ".join(args.id).strip())
    color = options.output_color(args.color, to_file=False)
    _show(markdown_text.page_as_text(page, width=options.terminal_width(80), color=color))
    return OK


def _page_of(name: str) -> str:
    """The pages of a name, as Markdown."""
    checks = [each for each in _checks() if registry.matches(each, name)]
    if len(checks) > 1 and name in {check.domain for check in checks}:
        rows = "".join(f"- **{check.id}**: {check.title}\n" for check in checks)
        how = f"Read one: `gpudoctor explain NAME`; all of them: `gpudoctor explain '{name}.*'`"
        return f"# {name}: {len(checks)} checks\n\n{rows}\n{how}\n"
    if checks:
        return "\n\n".join(map(check_docs.page_text, checks))
    named = (_page_of_exit_codes, _page_of_fault, _page_of_cause, _page_of_xid, _page_of_method, _page_of_line)
    for find in (*named, _search):
        page = find(name)
        if page is not None:
            return page
    known = [*{check.domain for check in _checks()}, *(check.id for check in _checks())]
    known += [*causes.CAUSES, *causes.page_names(), *load.fault_names()]
    near = did_you_mean(name, known) or did_you_mean("-".join(name.split()), known)
    if name.isdecimal():
        near = f"; NVIDIA's catalogue has no Xid of this number; as an exit code: gpudoctor explain exit code {name}"
    see = "see: gpudoctor list"
    if len(name.split()) > _MOST_WORDS_OF_A_NAME:  # a line that somebody pasted
        see = "what a machine prints: gpudoctor check --node -; what a job prints: gpudoctor diagnose -"
    raise UserError(f"nothing is called {printable(name)[:60]!r}{near}; {see}")


def _checks() -> tuple[registry.Check, ...]:
    """The checks of a node, and those of a run."""
    return (*registry.all_checks(), *run_check.run_checks())


def _page_of_cause(name: str) -> str | None:
    page = causes.page_of(name)
    cause = causes.CAUSES.get(name.removeprefix("diagnose.").replace("-", "_"))
    if page is None or cause is None:
        return page
    steps = "\n".join(f"- {step}" for step in cause.steps)
    checks = "".join(f"- On the nodes of the job: `gpudoctor check {check}`\n" for check in cause.checks)
    return f"# {name.removeprefix('diagnose.')}: {cause.title}\n\n{steps}\n{checks}\n{page}"


def _page_of_fault(name: str) -> str | None:
    fault = next((each for each in load.faults() if each.name == name.partition("@")[0]), None)
    if fault is None:
        return None
    (check,) = registry.select(registry.all_checks(), [fault.check])
    example = f"gpudoctor check --node hgx-h100-8 --fault {fault.name} {fault.check}"
    intro = f"A simulated fault: {fault.check} must say {fault.status}. Try it:\n\n    {example}"
    return f"# {fault.name}: {fault.title}\n\n{intro}\n\n{check_docs.page_text(check)}"


def _page_of_xid(name: str) -> str | None:
    match = _XID.fullmatch(name)
    if match is None or (name.isdecimal() and int(name) not in xids.XIDS):
        return None
    xid = xids.xid(int(match[1]))
    how_bad = _HOW_BAD_OF.get(xid.code, _HOW_BAD[xid.bucket])
    advice = "" if xid.advice == xids.ADVICE["info"] else f"{xid.advice}\n\n"  # `how_bad` says so
    if xid.code == 154:
        advice += "".join(f"- {name}: {what}\n" for name, what in xids.RECOVERY.values()) + "\n"
    other = f"\nAs an exit code: `gpudoctor explain exit code {name}`.\n" if name.isdecimal() and xid.code > 128 else ""
    return (
        f"# Xid {xid.code}: {xid.words}\n\nIn a recent kernel log: {how_bad}.\n\n{advice}"
        f"How gpudoctor judges all of them: `gpudoctor explain gpu.xid`. Source: NVIDIA's Xid catalogue.\n{other}"
    )


def _page_of_method(name: str) -> str | None:
    text = not_planned.NOT_PLANNED.get(name.lower())
    return f"# {name.lower()}\n\n{text}.\nFor your GPUs: `gpudoctor plan 7b --{name.lower()}`\n" if text else None


def _page_of_line(name: str) -> str | None:
    """The page of what `diagnose` reads in a line of a log; a single word is none."""
    what = one_line.cause_of_line(name) if len(_WORD.findall(name.lower())) > 1 else None
    return _page_of_cause(what) if what else None


def _search(name: str) -> str | None:
    """The pages that contain every word of the name, first those with them in the title; None if there are none.

    If there is only one, it is that page.
    """
    asked = {word for word in _words(name) if word not in _SMALL_WORDS}
    if not asked or max(map(len, asked)) < 2:
        return None
    titled: list[str] = []
    named: list[str] = []
    others: list[tuple[str, str]] = []
    for topic, title, text in _topics():
        if asked <= _words(f"{topic} {title}"):
            titled.append(f"- **{topic}**: {title}")
            named.append(topic)
        elif asked <= _words(f"{topic} {title} {text}"):
            others.append((topic, title))
    if not titled and not others:
        return None
    found = [*named, *(topic for topic, _ in others)]
    if len(found) == 1 and found[0] != name:
        return _page_of(found[0])
    parts = ["\n".join(titled or (f"- **{topic}**: {title}" for topic, title in others))]
    if titled and others:
        parts.append(f"Also in the text of: {', '.join(f'**{topic}**' for topic, _ in others)}")
    return f"# Pages with “{printable(name)}”\n\n" + "\n\n".join([*parts, "Read one: `gpudoctor explain NAME`\n"])


def _words(text: str) -> set[str]:
    """The words of a text, in small letters and without their endings: "links" is "link"."""
    return {_ENDING.sub("", word) for word in _WORD.findall(text.lower())}


def _topics() -> Iterator[tuple[str, str, str]]:
    """The name, the title and the text of everything that has a page."""
    for check in _checks():
        yield check.id, check.title, check_docs.page_text(check)
    for page in causes.page_names():
        heading, _, text = (causes.page_of(page) or "").partition("\n")
        yield f"diagnose.{page}", heading.lstrip("# ").rpartition(": ")[2], text
    for what, cause in causes.CAUSES.items():
        yield what, cause.title, " ".join(cause.steps)
    for fault in load.faults():
        yield fault.name, fault.title, ""
    for xid in xids.XIDS.values():
        yield f"Xid {xid.code}", xid.words, ""


def _page_of_exit_codes(name: str) -> str | None:
    """ "exit codes" and "exit 3" are ours, "exit code 137" and "exitcode: -9" of a job's process."""
    found = _EXIT.fullmatch(name.strip())
    if found is None:
        return None
    of_a_job = found["signal"] or int(found["code"] or 0) not in range(4)
    return causes.page_of("process-died") if of_a_job else _EXIT_CODES


def _show(text: str) -> None:
    if not _needs_pager(text):
        write_stdout(text)
        return
    os.environ.setdefault("LESS", "FRX")  # as git does: colours are shown, and the page stays on the screen
    pydoc.pager(text)


def _needs_pager(text: str) -> bool:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return text.count("\n") >= shutil.get_terminal_size().lines
