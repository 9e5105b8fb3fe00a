"""The YAML configuration: structs, loading, merging, and errors that name file, line and key."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpudoctor.checks.case import Expect
from gpudoctor.checks.registry import Check, Level, matches
from gpudoctor.checks.suppress import Suppression
from gpudoctor.errors import UserError

SYSTEM_FILE = Path("/etc/gpudoctor/config.yaml")
MAX_BYTES = 1 << 20

Thresholds = dict[str, dict[str, float | dict[str, dict[str, float]]]]


class ConfigError(UserError):
    """The configuration cannot be used; the message names file, line and key."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator may set. Every key has its default here; command-line options win over it.

    `thresholds` maps a check id to its limits, and under `models` a part of a GPU's name to
    limits for that model. `suppress` lists known problems with a reason and a last day.
    """

    level: Level = "standard"
    profile: str = "auto"
    fail_on: Literal["fail", "warn", "never"] = "fail"
    deadline_s: float = 10.0
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    expect: Expect = Expect()
    thresholds: Thresholds = {}
    suppress: tuple[Suppression, ...] = ()


def load_config(
    explicit: Path | None, environ: Mapping[str, str], checks: Iterable[Check], system_file: Path = SYSTEM_FILE
) -> Config:
    """Merge the defaults, the system's file, the user's file, and the explicit one, later ones winning.

    The first two may be absent; an explicit one must exist. `checks` are those whose ids and
    thresholds may be named. Raise ConfigError.
    """
    checks = tuple(checks)
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")  # noqa: PTH118
    merged: dict[str, Any] = {}
    for path in (system_file, Path(home) / "gpudoctor" / "config.yaml"):
        if path.is_file():
            merged = _merge(merged, _read(path, checks))
    if explicit is not None:
        merged = _merge(merged, _read(explicit, checks))
    return msgspec.convert(merged, Config) if merged else Config()


def threshold_overrides(config: Config) -> dict[tuple[str, str, str], float]:
    """The configured limits as a Case wants them: (check id, limit, part of a GPU name or "") to number."""
    overrides: dict[tuple[str, str, str], float] = {}
    for check_id, limits in config.thresholds.items():
        for name, value in limits.items():
            if isinstance(value, dict):
                for model, model_limits in value.items():
                    overrides.update({(check_id, limit, model): number for limit, number in model_limits.items()})
            else:
                overrides[check_id, name, ""] = value
    return overrides


def _wrong_names(config: Config, checks: tuple[Check, ...]) -> Iterator[tuple[str, str]]:
    """Places in a configuration that name a check or threshold which does not exist, and what to say."""
    by_id = {check.id: check for check in checks}
    names = [*by_id, *{check.domain for check in checks}]
    for check_id, limits in config.thresholds.items():
        if check_id not in by_id:
            yield f"thresholds.{check_id}", f"no check is called that{_nearest(check_id, by_id)}"
            continue
        known = by_id[check_id].limits
        for name, value in limits.items():
            place = f"thresholds.{check_id}.{name}"
            if isinstance(value, dict) and name != "models":
                yield place, "a number is wanted here; limits by GPU model go under `models`"
            numbers = [limit for part in value.values() for limit in part] if isinstance(value, dict) else [name]
            for limit in numbers:
                if limit not in known:
                    has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                    yield place, f"{check_id} has no threshold {limit!r}; {has}"
    for key, words in (("skip", config.skip), ("require", config.require)):
        for word in words:
            if not any(matches(check, word) for check in checks):
                yield key, f"no check is called {word!r}{_nearest(word, names)}"
    for number, rule in enumerate(config.suppress):
        if not any(matches(check, rule.check) for check in checks):
            yield f"suppress[{number}].check", f"no check is called {rule.check!r}{_nearest(rule.check, names)}"
        if not rule.reason.strip():
            yield f"suppress[{number}].reason", "a reason is wanted"


def _nearest(word: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` wins; mappings merge key by key, lists are replaced; null takes a key back to its default."""
    merged = dict(under)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _read(path: Path, checks: tuple[Check, ...]) -> dict[str, Any]:
    import yaml

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than 1 MiB: not a configuration of gpudoctor")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = raw.decode()
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=loader)):
            raise ConfigError(f"{path}: YAML aliases are not allowed here: write the value out")
        tree = yaml.compose(text, Loader=loader)
        data = yaml.load(text, Loader=loader)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{path}{line}: {problem}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a mapping of keys is wanted, this is a {type(data).__name__}")
    _validate(data, tree, path, checks)
    return data


def _validate(data: dict[str, Any], tree: Any, path: Path, checks: tuple[Check, ...]) -> None:
    """Check one file by itself, so that the error can name it and the line."""
    try:
        config = msgspec.convert(_merge({}, data), Config)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        place = place.rstrip("`").lstrip(".")
        if "unknown field" in message:
            key = message.split("`")[1]
            place = f"{place}.{key}".lstrip(".")
            message = f"unknown key{_nearest(key, _keys_at(place))}"
        raise ConfigError(f"{path}, line {_line_of(tree, place)}: {place or 'top'}: {message}") from None
    for place, message in _wrong_names(config, checks):
        raise ConfigError(f"{path}, line {_line_of(tree, place)}: {place}: {message}")


def _keys_at(place: str) -> tuple[str, ...]:
    parents: dict[str, type[msgspec.Struct]] = {"": Config, "expect": Expect, "suppress": Suppression}
    return parents.get(place.rpartition(".")[0].partition("[")[0], Config).__struct_fields__


def _line_of(tree: Any, place: str) -> int:
    """The line (from 1) of the deepest part of a path like `suppress[0].until` that is there."""
    import re

    line, node = tree.start_mark.line + 1, tree
    parts = re.findall(r"[^.\[\]]+", place)
    while parts:
        # a check id holds a dot: try the longest key first
        for length in (2, 1):
            found = _child(node, ".".join(parts[:length])) if len(parts) >= length else None
            if found is not None:
                line, node = found
                parts = parts[length:]
                break
        else:
            break
    return int(line)


def _child(node: Any, part: str) -> tuple[int, Any] | None:
    value = getattr(node, "value", None)
    if not isinstance(value, list):
        return None
    if part.isdigit() and value and not isinstance(value[0], tuple):
        index = int(part)
        return (value[index].start_mark.line + 1, value[index]) if index < len(value) else None
    for item in value:
        if isinstance(item, tuple) and item[0].value == part:
            return item[0].start_mark.line + 1, item[1]
    return None


def today() -> datetime.date:
    """The day by which a suppression ends, in UTC so that all nodes of a fleet agree."""
    return datetime.datetime.now(datetime.timezone.utc).date()


def as_yaml(config: Config, checks: Iterable[Check]) -> str:
    """The merged configuration with every threshold in force, as YAML that can be used as a file."""
    import yaml

    overrides = threshold_overrides(config)
    data: dict[str, Any] = msgspec.to_builtins(config, builtin_types=(datetime.date,))
    thresholds: dict[str, Any] = {
        check.id: {name: overrides.get((check.id, name, ""), limit.value) for name, limit in check.limits.items()}
        for check in checks
        if check.limits
    }
    for (check_id, name, model), value in overrides.items():
        if model:
            thresholds[check_id].setdefault("models", {}).setdefault(model, {})[name] = value
    data["thresholds"] = thresholds
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
