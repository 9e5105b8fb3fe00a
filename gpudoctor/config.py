"""The YAML configuration: structs, loading, merging, and errors that name file, line and key."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpudoctor.checks.core.case import Expect
from gpudoctor.checks.core.registry import Check, Level, matches
from gpudoctor.checks.core.suppressions import Suppression
from gpudoctor.errors import UserError, nearest_names
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.path_status import ask_paths
from gpudoctor.lazy_import import lazy_imports

with lazy_imports():
    import yaml

    from gpudoctor import yaml_file

if TYPE_CHECKING:
    from gpudoctor.yaml_file import Place

SYSTEM_FILE = Path("/etc/gpudoctor/config.yaml")

Thresholds = dict[str, dict[str, float | dict[str, dict[str, float]]]]


class ConfigError(UserError):
    """The configuration cannot be used; the message names file, line and key."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of the configuration file, with their defaults; command-line options take precedence."""

    level: Annotated[Level, Meta(description="How much is done, unless `--level` is given")] = "standard"
    profile: Annotated[str, Meta(description="A profile's name; `auto`: by GPU name and count")] = "auto"
    fail_on: Annotated[
        Literal["fail", "warn", "never"], Meta(description="From which status on the exit code is 1")
    ] = "fail"
    deadline_s: Annotated[
        float, Meta(gt=0, le=86400, description="For reading all facts of this machine, in seconds")
    ] = COLLECTION.seconds
    burn_duration_s: Annotated[
        float, Meta(ge=10, le=86400, description="How long level burn repeats the load, in seconds")
    ] = 600.0
    skip: Annotated[tuple[str, ...], Meta(description="Checks that are not run: ids, domains or globs")] = ()
    require: Annotated[
        tuple[str, ...],
        Meta(description="Checks that must give a verdict, else the exit code is 3: ids, domains or globs"),
    ] = ()
    expect: Annotated[Expect, Meta(description="What this node must have")] = Expect()
    thresholds: Annotated[
        Thresholds, Meta(description="Limits by check id and name; below `models`, by a part of a GPU's name")
    ] = {}
    suppress: Annotated[
        tuple[Suppression, ...], Meta(description="Known problems, set aside with a reason and a last day")
    ] = ()


def load_config(
    explicit: Path | None,
    environ: Mapping[str, str],
    checks: Iterable[Check],
    system_file: Path = SYSTEM_FILE,
    silent: Callable[[str], None] | None = None,
) -> Config:
    """Merge the defaults, the system's file, the user's file and the explicit file; later ones win.

    The system's and the user's file may be absent; the explicit one must exist. `checks` are those whose ids and
    thresholds may be named. If the user's file is on a mount that does not answer, it is skipped and `silent` is called
    with a note about it; without `silent` that is an error. Raise ConfigError.
    """
    checks = tuple(checks)
    merged: dict[str, Any] = {}
    for path in (system_file, *_users_file(environ)):
        if path != system_file and (why := _does_not_answer(path)) is not None:
            if silent is None:
                raise ConfigError(f"{path}: {why}; XDG_CONFIG_HOME=/ leaves it out")
            silent(f"the configuration {path} was not read: it {why}")
        elif _is_there(path):
            merged = _merge(merged, _read(path, checks))
    if explicit is not None:
        merged = _merge(merged, _read(explicit, checks))
    return msgspec.convert(merged, Config) if merged else Config()


def _users_file(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The path of the user's file; empty if relative to the working directory, which may belong to another user."""
    home = Path(environ.get("HOME") or "/") / ".config"
    # XDG base directory specification: relative paths must be ignored
    named = Path(environ.get("XDG_CONFIG_HOME", ""))
    place = named if named.is_absolute() else home
    return (place / "gpudoctor" / "config.yaml",) if place.is_absolute() else ()


def _does_not_answer(path: Path) -> str | None:
    """Why the file cannot be looked up, if the server of HOME is dead: stat() without a deadline would hang."""
    [status] = ask_paths([str(path)])
    return status.reason if isinstance(status, Missing) else None


def threshold_overrides(config: Config) -> dict[tuple[str, str, str], float]:
    """The configured limits in the form that Case takes: (check id, limit, part of a GPU name or "") to number."""
    overrides: dict[tuple[str, str, str], float] = {}
    for check_id, limits in config.thresholds.items():
        for name, value in limits.items():
            if isinstance(value, dict):
                for model, model_limits in value.items():
                    overrides.update({(check_id, limit, model): number for limit, number in model_limits.items()})
            else:
                overrides[check_id, name, ""] = value
    return overrides


def _wrong_names(config: Config, checks: tuple[Check, ...]) -> Iterator[tuple[Place, str]]:
    """Each place in a configuration that names an unknown check or threshold, and the error message."""
    by_id = {check.id: check for check in checks}
    names = [*by_id, *{check.domain for check in checks}]
    for check_id, limits in config.thresholds.items():
        if check_id not in by_id:
            yield ("thresholds", check_id), f"no check is called that{_nearest(check_id, by_id)}"
            continue
        known = by_id[check_id].limits
        for name, value in limits.items():
            place = ("thresholds", check_id, name)
            if isinstance(value, dict) and name != "models":
                yield place, "a number is wanted here; limits by GPU model go under `models`"
            numbers = [limit for part in value.values() for limit in part] if isinstance(value, dict) else [name]
            for limit in numbers:
                if limit not in known:
                    has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                    yield place, f"{check_id} has no threshold {limit!r}; {has}"
    for key, words in (("skip", config.skip), ("require", config.require)):
        for number, word in enumerate(words):
            if not any(matches(check, word) for check in checks):
                yield (key, number), f"no check is called {word!r}{_nearest(word, names)}"
    for number, rule in enumerate(config.suppress):
        if not any(matches(check, rule.check) for check in checks):
            yield ("suppress", number, "check"), f"no check is called {rule.check!r}{_nearest(rule.check, names)}"
        elif not rule.everything and _names_all(rule.check, checks):
            why = "this names every quick check; name a check or a domain, or say `everything: true` beside it"
            yield ("suppress", number, "check"), why
        if not rule.reason.strip():
            yield ("suppress", number, "reason"), "a reason is wanted"


def _names_all(word: str, checks: tuple[Check, ...]) -> bool:
    quick = [check for check in checks if check.level == "quick"]
    return len(quick) > 1 and all(matches(check, word) for check in quick)


def _nearest(word: str, names: Iterable[str]) -> str:
    close = nearest_names(word[:100], names, 1, 0.6)
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


def _is_there(path: Path) -> bool:
    """Whether there is anything of that name. A folder that may not be entered counts as without it."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def _read(path: Path, checks: tuple[Check, ...]) -> dict[str, Any]:
    """The keys of one file, validated before merging so that errors can name file and line. Raise ConfigError."""
    try:
        file = yaml_file.read_yaml(path)
        if file.data is None:
            return {}
        if not isinstance(file.data, dict):
            raise file.error((), f"a mapping of keys is wanted, this is a {type(file.data).__name__}")
        config = file.convert(_merge({}, file.data), Config, _nearest_key)
        for place, problem in _wrong_names(config, checks):
            raise file.error(place, problem)
    except yaml_file.YamlFileError as error:
        raise ConfigError(str(error)) from None
    data: dict[str, Any] = file.data
    return data


def _nearest_key(parent: Place, key: str) -> str:
    parents: dict[Place, type[msgspec.Struct]] = {("expect",): Expect, ("suppress",): Suppression}
    return _nearest(key, parents.get(parent[:1], Config).__struct_fields__)


def today() -> datetime.date:
    """The current date for ending suppressions, in UTC so that all nodes of a fleet agree."""
    return datetime.datetime.now(datetime.timezone.utc).date()


def as_yaml(config: Config, checks: Iterable[Check]) -> str:
    """The merged configuration with every effective threshold, as YAML that is itself a valid configuration file."""
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
    # libyaml, if PyYAML was built with it, takes a fifth of the time
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True)
