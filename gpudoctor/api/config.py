"""The YAML configuration: structs, loading, merging, and errors that name file, line and key."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from gpudoctor.checks.core.case import Expect
from gpudoctor.checks.core.registry import Check, Level, matches
from gpudoctor.checks.core.suppressions import Suppression
from gpudoctor.errors import UserError, did_you_mean
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.path_status import ask_paths
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import FailOn

with lazy_imports():
    import yaml

    from gpudoctor.text import hostlist, yaml_file

if TYPE_CHECKING:
    from gpudoctor.text.yaml_file import KeyPath, YamlFile

SYSTEM_FILE = "/etc/gpudoctor/config.yaml"

Thresholds = dict[str, dict[str, float | dict[str, dict[str, float]]]]


class ConfigError(UserError):
    """The configuration cannot be used; the message names file, line and key."""


class HostConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What differs on some hosts: it takes precedence, and its suppressions are added to those of all hosts."""

    hosts: Annotated[str, Meta(description="The hosts, as n[1-4,7],login; with or without their domain")]
    profile: Annotated[str | None, Meta(description="As for all hosts")] = None
    fail_on: Annotated[FailOn | None, Meta(description="As for all hosts")] = None
    expect: Annotated[Expect, Meta(description="As for all hosts")] = Expect()
    thresholds: Annotated[Thresholds, Meta(description="As for all hosts")] = {}
    suppress: Annotated[tuple[Suppression, ...], Meta(description="As for all hosts")] = ()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of the configuration file, with their defaults; command-line options take precedence."""

    level: Annotated[Level, Meta(description="How much is done, unless `--level` is given")] = "standard"
    profile: Annotated[str, Meta(description="A profile's name; `auto`: by GPU name and count")] = "auto"
    fail_on: Annotated[FailOn, Meta(description="From which status on the exit code is 1")] = "fail"
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
    hosts: Annotated[
        tuple[HostConfig, ...], Meta(description="What differs on some hosts; of several entries later ones win")
    ] = ()


def config_of_host(config: Config, host: str | None) -> Config:
    """The configuration with what it says for this host."""
    for entry in config.hosts:
        if host is not None and host in hostlist.Hosts(hostlist.expand_hostlist(entry.hosts)):
            expected = {key: value for key, value in msgspec.structs.asdict(entry.expect).items() if value is not None}
            config = msgspec.structs.replace(
                config,
                profile=entry.profile or config.profile,
                fail_on=entry.fail_on or config.fail_on,
                expect=msgspec.structs.replace(config.expect, **expected),
                thresholds=_merge(config.thresholds, entry.thresholds),
                suppress=(*config.suppress, *entry.suppress),
            )
    return config


def load_config(
    explicit: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    checks: Callable[[], Iterable[Check]],
    system_file: str | os.PathLike[str] = SYSTEM_FILE,
    silent: Callable[[str], None] | None = None,
    left_out: Callable[[str], None] | None = None,
) -> Config:
    """Merge the defaults, the system's file, the user's file and the explicit file; later ones win.

    The system's and the user's file may be absent; the explicit one must exist. `checks` returns those whose ids
    and thresholds may be named; it is called if there is a file. If the user's file is on a mount that does not
    answer, it is skipped and `silent` is called with a note about it; without `silent` that is an error. What this
    version does not know (a key, a check, a threshold: a file for newer versions may name them) is left out, and
    `left_out` is called with a line about it; without `left_out` that is an error too. Raise ConfigError.
    """
    merged: dict[str, Any] = {}
    for path in (system_file, *_users_file(environ)):
        if path != system_file and (why := _does_not_answer(path)) is not None:
            if silent is None:
                raise ConfigError(f"{path}: {why}; XDG_CONFIG_HOME=/ leaves it out")
            silent(f"the configuration {path} was not read: it {why}")
        elif os.path.exists(path):  # False also if a folder above may not be entered
            merged = _merge(merged, _read(path, tuple(checks()), left_out))
    if explicit is not None:
        merged = _merge(merged, _read(explicit, tuple(checks()), left_out))
    return msgspec.convert(merged, Config) if merged else Config()


def _users_file(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The path of the user's file; empty if relative to the working directory, which may belong to another user."""
    home = os.path.join(environ.get("HOME") or "/", ".config")
    # XDG base directory specification: relative paths must be ignored
    named = environ.get("XDG_CONFIG_HOME", "")
    place = named if named.startswith("/") else home
    return (os.path.join(place, "gpudoctor", "config.yaml"),) if place.startswith("/") else ()


def _does_not_answer(path: str | os.PathLike[str]) -> str | None:
    """Why the file cannot be looked up, if the server of HOME is dead: stat() without a deadline would hang."""
    [status] = ask_paths([os.fspath(path)])
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


class _Wrong(NamedTuple):
    """A place in a configuration and what is wrong there; `newer`: a newer version may know it: it can be left out."""

    place: KeyPath
    problem: str
    newer: bool = False


def _wrong_names(config: Config, checks: tuple[Check, ...]) -> Iterator[_Wrong]:
    """Each place in a configuration that names an unknown check, threshold or host, and the error message."""
    names = [*(check.id for check in checks), *{check.domain for check in checks}]
    for key, text in (("skip", config.skip), ("require", config.require)):
        for number, word in enumerate(text):
            if not any(matches(check, word) for check in checks):
                # what must give a verdict cannot be left out
                yield _Wrong((key, number), f"no check is called {word!r}{did_you_mean(word, names)}", key == "skip")
    yield from _wrong_limits((), config.thresholds, checks)
    yield from _wrong_rules((), config.suppress, checks)
    for number, entry in enumerate(config.hosts):
        try:
            hostlist.expand_hostlist(entry.hosts)
        except UserError as error:
            yield _Wrong(("hosts", number, "hosts"), str(error))
        yield from _wrong_limits(("hosts", number), entry.thresholds, checks)
        yield from _wrong_rules(("hosts", number), entry.suppress, checks)


def _wrong_limits(under: KeyPath, thresholds: Thresholds, checks: tuple[Check, ...]) -> Iterator[_Wrong]:
    by_id = {check.id: check for check in checks}
    for check_id, limits in thresholds.items():
        place: KeyPath = (*under, "thresholds", check_id)
        if check_id not in by_id:
            yield _Wrong(place, f"no check is called that{did_you_mean(check_id, by_id)}", newer=True)
            continue
        known = by_id[check_id].limits
        for name, value in limits.items():
            if isinstance(value, dict) and name != "models":
                yield _Wrong((*place, name), "a number is wanted here; limits by GPU model go under `models`")
            numbers = [limit for part in value.values() for limit in part] if isinstance(value, dict) else [name]
            for limit in numbers:
                if limit not in known:
                    has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                    yield _Wrong((*place, name), f"{check_id} has no threshold {limit!r}; {has}", newer=True)


def _wrong_rules(under: KeyPath, rules: tuple[Suppression, ...], checks: tuple[Check, ...]) -> Iterator[_Wrong]:
    names = [*(check.id for check in checks), *{check.domain for check in checks}]
    for number, rule in enumerate(rules):
        place: KeyPath = (*under, "suppress", number)
        if not any(matches(check, rule.check) for check in checks):
            problem = f"no check is called {rule.check!r}{did_you_mean(rule.check, names)}"
            yield _Wrong((*place, "check"), problem, newer=True)
        elif not rule.everything and _names_all(rule.check, checks):
            why = "this names every quick check; name a check or a domain, or say `everything: true` beside it"
            yield _Wrong((*place, "check"), why)
        if not rule.reason.strip():
            yield _Wrong((*place, "reason"), "a reason is wanted")


def _names_all(word: str, checks: tuple[Check, ...]) -> bool:
    quick = [check for check in checks if check.level == "quick"]
    return len(quick) > 1 and all(matches(check, word) for check in quick)


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


def _read(
    path: str | os.PathLike[str], checks: tuple[Check, ...], left_out: Callable[[str], None] | None
) -> dict[str, Any]:
    """The keys of one file, validated before merging so that errors can name file and line. Raise ConfigError."""
    try:
        file = yaml_file.read_yaml(path)
        if file.data is None:
            return {}
        if not isinstance(file.data, dict):
            raise file.error((), f"a mapping of keys is wanted, this is a {type(file.data).__name__}")
        while (wrong := _first_wrong(file, checks)) is not None:
            place, problem, newer = wrong
            if left_out is None or not newer:
                raise yaml_file.YamlFileError(problem) if newer else file.error(place, problem)
            left_out(f"{problem}; left out")
            file = file.without(_with_its_rule(place))
    except yaml_file.YamlFileError as error:
        raise ConfigError(str(error)) from None
    data: dict[str, Any] = file.data
    return data


def _first_wrong(file: YamlFile, checks: tuple[Check, ...]) -> _Wrong | None:
    """The first problem; of what may be left out, `problem` is the whole message with file and line."""
    try:
        config = file.convert(_merge({}, file.data), Config, _nearest_key)
    except yaml_file.UnknownKeyError as error:
        return _Wrong(error.key_path, str(error), newer=True)
    wrong = next(_wrong_names(config, checks), None)
    return wrong._replace(problem=str(file.error(wrong.place, wrong.problem))) if wrong and wrong.newer else wrong


def _with_its_rule(place: KeyPath) -> KeyPath:
    """The place, or the whole suppression that it is in: without a part it would suppress more."""
    return place[: place.index("suppress") + 2] if "suppress" in place else place


def _nearest_key(parent: KeyPath, key: str) -> str:
    if parent[:1] == ("hosts",):
        parent = parent[2:] or ("hosts",)
    parents: dict[KeyPath, type[msgspec.Struct]] = {
        ("expect",): Expect,
        ("suppress",): Suppression,
        ("hosts",): HostConfig,
    }
    return did_you_mean(key, parents.get(parent[:1], Config).__struct_fields__)


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
