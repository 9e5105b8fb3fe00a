"""Reads the lines that report no error: how far a job has come, and who takes part."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.patterns import facts
from gpudoctor.diagnose.patterns.unknown_lines import WORK, is_harmless, is_loud


def read_facts(text: str, raw: str) -> Iterator[Event]:
    """The events of a line that no table knows: steps of a start, members, progress, the end, what looks like an error.

    `raw`: the line with its prefixes, which may call it a warning.
    """
    lowered = text.lower()
    if any(
        word in lowered for word in ("initializing d", "registered", "barrier", "rendezvous", "init torch", "_backend=")
    ):
        yield from _start(text)
    if "gloo" in lowered and (gloo := facts.GLOO.search(text)):
        detail: dict[str, str | int] = {"world": int(gloo["peers"]) + 1}
        yield Event(role="fact", what="member", rank=int(gloo["rank"]), detail=detail)
        return
    if "virtual memory" in lowered and (ram := facts.RAM.search(text)):
        yield Event(role="fact", what="ram", detail={"ram_pct": int(ram["pct"])})
        return
    if "pid" in lowered and (named := facts.RANK_PID.search(text)):
        detail = {"world": int(named["world"])} if named["world"] else {}
        rank, pid = int(named["rank"]), int(named["pid"])
        yield Event(role="fact", what="process", rank=rank, pid=pid, host=named["host"], detail=detail)
        return
    if "world" in lowered and (world := facts.WORLD.search(text)):
        yield Event(role="fact", what="world", detail={"world": int(world[1])})
    if any(word in lowered for word in ("stopp", "exhausted", "no more")) and facts.EARLY.search(text):
        yield Event(role="fact", what="early_stop")
    if ("resum" in lowered or "checkpoint" in lowered) and facts.RESUMED.search(text):
        yield Event(role="fact", what="resumed")
    if any(word in lowered for word in facts.WORDS_OF_AN_END) and facts.is_done(text):
        yield Event(role="done", what="done", detail={"one_word": 1} if facts.ONE_WORD.match(text) else {})
    elif step := facts.PROGRESS.search(text):
        yield Event(role="progress", what="progress", detail={"step": int(step[1])})
    elif WORK.search(text):
        yield Event(role="fact", what="work")
    elif is_loud(text, raw) and not is_harmless(text):
        yield Event(role="fact", what="error_words")


def _start(text: str) -> Iterator[Event]:
    for step, begins, ends in facts.STARTS:
        for what, pattern in (("begins", begins), ("begun", ends)):
            if found := pattern.search(text):
                said = found.groupdict()
                detail: dict[str, str | int] = {"step": step}
                if said.get("world"):
                    detail["world"] = int(said["world"])
                if said.get("group"):
                    detail["group"] = said["group"]
                if "process group" in step:
                    detail["rank_0_ends"] = 1
                rank = int(said["rank"]) if said.get("rank") else None
                yield Event(role="fact", what=what, rank=rank, detail=detail)
