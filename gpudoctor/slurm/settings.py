"""The settings of the Slurm hooks: variables in /etc/default/gpudoctor, which the scripts in contrib/slurm pass on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpudoctor.errors import UserError, did_you_mean
from gpudoctor.lazy import lazy_pattern

FILE = "/etc/default/gpudoctor"
# the variable of each field of `HookSettings`
_FIELDS = {
    "GPUDOCTOR_ACTION": "action",
    "GPUDOCTOR_DRAIN_CHECKS": "drain_checks",
    "GPUDOCTOR_DRAIN_CAP": "drain_cap_percent",
    "GPUDOCTOR_UNDRAIN_AFTER": "undrain_after",
    "GPUDOCTOR_UNDRAINS_A_DAY": "undrains_a_day",
    "GPUDOCTOR_ON_ERROR": "on_error",
    "GPUDOCTOR_MAX_AGE": "max_age_s",
    "GPUDOCTOR_SKIP": "skip",
    "GPUDOCTOR_SCOPE": "scope",
    "GPUDOCTOR_STATE": "state",
    "GPUDOCTOR_TEXTFILE": "textfile",
    "GPUDOCTOR_LOG": "log",
    "GPUDOCTOR_TRIAL": "simulated",
}
# read by the scripts or by every gpudoctor command
_OTHERS = ("GPUDOCTOR", "GPUDOCTOR_TRACEBACK", "GPUDOCTOR_FAKE_DRIVER")
_CHOICES = {"action": ("drain", "log"), "on_error": ("run", "hold"), "scope": ("job", "node")}
_FOLDERS = ("state", "textfile", "log")
_NUMBERS = {
    "drain_cap_percent": (lazy_pattern(r"(\d{1,3})%"), 1, 100, "a share of a partition, from 1% to 100%"),
    "undrain_after": (lazy_pattern(r"(\d{1,4})"), 1, 1000, "`never` or a number of healthy checks from 1 to 1000"),
    "undrains_a_day": (lazy_pattern(r"(\d{1,4})"), 1, 1000, "a number of returns from 1 to 1000"),
    "max_age_s": (lazy_pattern(r"(\d{1,4})"), 0, 3600, "seconds from 0 (never) to 3600"),
}


class SettingsError(UserError):
    """An invalid setting; the message contains its name, its value and what is valid."""


class HookSettings(msgspec.Struct, frozen=True):
    """What an operator may set. An empty or missing variable means the default.

    `drain_checks` are ids, domains or globs of checks whose failures may drain the node (empty: all). No further node
    is drained above `drain_cap_percent` of a partition (None: no limit). `undrain_after` is a number of consecutive
    health checks (None: gpudoctor undoes no drain), `undrains_a_day` how often that may happen in 24 hours. Prologs
    reuse a health check's verdict for `max_age_s`. `simulated` is a node and its faults, checked instead of this
    machine.
    """

    action: Literal["drain", "log"] = "drain"
    drain_checks: tuple[str, ...] = ()
    drain_cap_percent: int | None = None
    undrain_after: int | None = 3
    undrains_a_day: int = 2
    on_error: Literal["run", "hold"] = "run"
    max_age_s: int = 330
    # in a hook these would judge slurmd's limits and CPUs instead of a job's
    skip: tuple[str, ...] = ("env", "host.cpu-per-gpu", "host.ram-per-gpu", "host.limits", "topology.numa")
    scope: Literal["job", "node"] = "job"
    state: Path = Path("/run/gpudoctor")
    textfile: Path | None = None
    log: Path | None = None
    simulated: tuple[str, ...] = ()


def read_settings(environ: Mapping[str, str]) -> tuple[HookSettings, str | None]:
    """The valid settings in the environment, and one line about the invalid ones; None if all are valid."""
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for name, text in sorted(environ.items()):
        if not name.startswith("GPUDOCTOR") or name in _OTHERS:
            continue
        field = _FIELDS.get(name)
        try:
            if field is None:
                raise SettingsError(f"{name}: no setting is called that{did_you_mean(name, (*_FIELDS, 'GPUDOCTOR'))}")
            if text.strip() or field == "skip":
                values[field] = _value(name, field, text.strip())
        except SettingsError as error:
            wrong.append(str(error))
    return HookSettings(**values), f"{FILE}: {'; '.join(wrong)}" if wrong else None


def _value(name: str, field: str, text: str) -> object:
    if field in _CHOICES:
        if text not in _CHOICES[field]:
            raise SettingsError(f"{name}={text[:60]}: it must be {' or '.join(_CHOICES[field])}")
        return text
    if (field, text) == ("undrain_after", "never"):
        return None
    if field in _NUMBERS:
        pattern, least, most, expected = _NUMBERS[field]
        match = pattern.fullmatch(text)
        if match is None or not least <= int(match[1]) <= most:
            raise SettingsError(f"{name}={text[:60]}: it must be {expected}")
        return int(match[1])
    if field in _FOLDERS:
        if not text.startswith("/"):
            raise SettingsError(f"{name}={text[:60]}: it must be a path that begins with /")
        return Path(text)
    return tuple(text.replace(",", " ").split())
