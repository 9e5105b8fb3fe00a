"""The rows of the check list as data: checks under their domains, filtered and folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby

from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Finding, Status
from gpudoctor.checks.core.registry import DOMAINS, LEVELS, Level
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import grouped_label
from gpudoctor.report.model import Report
from gpudoctor.tui.labels import WORDS
from gpudoctor.tui.state import Running

RUN = "RUN"
_COUNTED = {"PASS": "ok", "FAIL": "fail"}


@dataclass(frozen=True)
class CheckRow:
    """One row. `check_id` is None for the row of a domain. `opened`: whether the domain shows its checks.

    `word` is the status or RUN, `detail` the text at the right, `gpu` the first GPU concerned.
    """

    domain: str
    check_id: str | None
    word: str
    detail: str
    gpu: int | None = None
    opened: bool = False

    @property
    def name(self) -> str:
        return self.domain if self.check_id is None else self.check_id.partition(".")[2]


def rows_of(
    report: Report | None,
    running: Running | None,
    folded: Mapping[str, bool],
    filter_text: str = "",
    problems_only: bool = False,
) -> list[CheckRow]:
    """All visible rows. `folded`: the domains that the user has folded (True) or unfolded (False).

    Any other domain is unfolded if it has a problem or a filter is set.
    """
    rows: list[CheckRow] = []
    level = report.run.level if report is not None else "quick"
    for domain, group in groupby(_in_order(report.checks if report else ()), key=lambda check: check.domain):
        checks = list(group)
        words = {check.id: RUN if is_running(check, running) else WORDS[check.status] for check in checks}
        shown = [
            check
            for check in checks
            if (not problems_only or check.status in PROBLEMS or words[check.id] == RUN)
            and (not filter_text or _matches(check, words[check.id], filter_text))
        ]
        if not shown:
            continue
        has_problem = any(check.status in PROBLEMS or words[check.id] == RUN for check in checks)
        opened = not folded.get(domain, not (has_problem or bool(filter_text) or problems_only))
        rows.append(CheckRow(domain, None, _worst_word(words.values()), _summary(checks, words, level), opened=opened))
        if opened:
            rows += [_check_row(check, words[check.id], level) for check in shown]
    return rows


def is_running(check: CheckResult, running: Running | None) -> bool:
    """Whether the current run will judge this check.

    In a run of all checks above quick only those that wait for the probes count: the quick
    checks keep their status.
    """
    if running is None or LEVELS.index(check.level) > LEVELS.index(running.level):
        return False
    if running.words:
        return any(word in (check.id, check.domain) or fnmatchcase(check.id, word) for word in running.words)
    return running.level == "quick" or check.level != "quick"


def _in_order(checks: Iterable[CheckResult]) -> list[CheckResult]:
    places = {domain: place for place, domain in enumerate(DOMAINS)}
    return sorted(checks, key=lambda check: (places.get(check.domain, len(places)), check.domain))


def _check_row(check: CheckResult, word: str, level: Level) -> CheckRow:
    worst = [finding for finding in check.findings if finding.status is check.status]
    gpu = next((gpu for finding in worst if (gpu := _gpu(finding)) is not None), None)
    if word == RUN:
        return CheckRow(check.domain, check.id, word, f"was {WORDS[check.status]}", gpu)
    label = grouped_label(finding.subject for finding in worst)
    if check.status is Status.SKIP:
        label = _why_not(check, level)
    return CheckRow(check.domain, check.id, word, "" if label == "node" else label, gpu)


def _why_not(check: CheckResult, level: Level) -> str:
    if LEVELS.index(check.level) > LEVELS.index(level):
        return f"level {check.level}"
    return next((finding.reason for finding in check.findings if finding.reason), "")


def _gpu(finding: Finding) -> int | None:
    subject = finding.subject
    return subject.gpus[0] if subject.gpu is None and subject.gpus else subject.gpu


def _worst_word(words: Iterable[str]) -> str:
    order = [WORDS[status] for status in WORST_FIRST]
    return min(words, key=lambda word: -1 if word == RUN else order.index(word))


def _summary(checks: list[CheckResult], words: Mapping[str, str], level: Level) -> str:
    """ "1 fail  3 ok"; the reason if the whole domain was skipped."""
    counts = Counter(words.values())
    if set(counts) == {WORDS[Status.SKIP]}:
        return _why_not(checks[0], level)
    order = ("FAIL", "unknown", "warn", RUN, "PASS", "skip")
    return "  ".join(f"{counts[word]} {_COUNTED.get(word, word)}" for word in order if counts[word])


def _matches(check: CheckResult, word: str, filter_text: str) -> bool:
    """Whether the text is part of the id, the title, a subject or the status, in any case."""
    wanted = filter_text.casefold()
    texts = [check.id, check.title, word, *(finding.subject.label for finding in check.findings)]
    return any(wanted in text.casefold() for text in texts)
