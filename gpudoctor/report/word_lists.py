"""The word lists behind a check, as its page shows them: what is looked for, what it means, and who prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from gpudoctor.checks.core.driver_messages import MEANINGS
from gpudoctor.checks.driver.load_causes import LOAD_CAUSES
from gpudoctor.checks.gpu.xid_details import NVLINK5_UNITS, XID_74_BITS
from gpudoctor.lazy_import import lazy

if TYPE_CHECKING:
    from gpudoctor.facts.captures.host import module
    from gpudoctor.facts.kernel_log import driver_messages, host_messages
else:
    module = lazy("gpudoctor.facts.captures.host.module")
    driver_messages = lazy("gpudoctor.facts.kernel_log.driver_messages")
    host_messages = lazy("gpudoctor.facts.kernel_log.host_messages")

COLUMNS = 80
_CATALOGUE = "NVIDIA's Xid catalogue"
_OF_LOADING = ("signature-rejected", "other-kernel", "other-driver")

Row = tuple[str, str, str]


def word_list(check_id: str) -> list[str]:
    """Lines of Markdown; none for a check that looks for no words."""
    rows = list(_rows(check_id))
    if not rows:
        return []
    lines = ["### Words that it looks for", "", "As regular expressions; what they mean; who prints them.", ""]
    for words, meaning, source in rows:
        lines += wrap(words, COLUMNS, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        lines += wrap(f"{meaning} ({source})", COLUMNS, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return [*lines, ""]


def _rows(check_id: str) -> Iterator[Row]:
    if check_id == "gpu.xid":
        yield from _driver_messages()
        for register, bits, words in XID_74_BITS:
            numbers = ", ".join(map(str, bits))
            yield f"Xid 74, register {register}, bits {numbers}", words, _CATALOGUE
        for code, unit in NVLINK5_UNITS.items():
            yield f"Xid {code}", f"NVLink 5, unit {unit}; subcode: bits 20 to 25 of the first number", _CATALOGUE
    elif check_id == "gpu.count":
        yield from _driver_messages(only_not_started=True)
    elif check_id == "driver.loaded":
        for error in module.LOAD_ERRORS:
            yield error.pattern.pattern, LOAD_CAUSES[error.cause].found, error.source
        yield from _host_messages(lambda kind: kind in _OF_LOADING)
    elif check_id == "network.adapters":
        yield from _host_messages(lambda kind: kind.startswith("nic-"))
    elif check_id == "host.kernel":
        yield from _host_messages(lambda kind: kind not in _OF_LOADING and not kind.startswith("nic-"))


def _driver_messages(only_not_started: bool = False) -> Iterator[Row]:
    for row in driver_messages.DRIVER_MESSAGES:
        meaning = MEANINGS.get(row.name)
        if meaning is not None and (meaning.not_started or not only_not_started):
            yield row.pattern, meaning.words, f"NVIDIA kernel module: {row.source}"


def _host_messages(wanted: Callable[[str], bool]) -> Iterator[Row]:
    for row in host_messages.HOST_MESSAGES:
        if wanted(row.kind):
            yield row.pattern, row.kind, f"Linux: {row.source}" if not row.source.startswith("NVIDIA") else row.source
