"""The configuration file: what it changes, and how errors in it are reported."""

from __future__ import annotations

import datetime
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudoctor.api.config import Config, ConfigError, load_config, threshold_overrides
from gpudoctor.checks.core.registry import registry
from tests.cli.conftest import Gpudoctor, assert_refused
from tests.subprocesses import completed

NOWHERE = Path("/nonexistent/config.yaml")


def load(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "gpudoctor.yaml"
    path.write_text(text)
    return load_config(path, {"HOME": str(tmp_path)}, registry, system_file=NOWHERE)


def test_without_any_file_the_defaults_hold(tmp_path: Path) -> None:
    config = load_config(None, {"HOME": str(tmp_path)}, registry, system_file=NOWHERE)
    assert config == Config()
    assert (config.level, config.fail_on, config.deadline_s) == ("standard", "fail", 60.0)


def test_the_explicit_file_wins_over_the_users_and_the_users_over_the_systems(tmp_path: Path) -> None:
    system = tmp_path / "etc.yaml"
    system.write_text("level: quick\nfail_on: warn\ndeadline_s: 3\n")
    user = tmp_path / "xdg" / "gpudoctor" / "config.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("fail_on: never\ndeadline_s: 4\n")
    explicit = tmp_path / "mine.yaml"
    explicit.write_text("deadline_s: 5\n")
    config = load_config(explicit, {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}, registry, system_file=system)
    assert (config.level, config.fail_on, config.deadline_s) == ("quick", "never", 5.0)


@pytest.mark.parametrize("environ", [{"XDG_CONFIG_HOME": "config"}, {"XDG_CONFIG_HOME": "."}, {"HOME": "."}])
def test_no_configuration_is_taken_from_the_working_directory(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/tmp of a login node: another user's suppressions there would hide a failure."""
    for folder in (tmp_path, tmp_path / "config", tmp_path / ".config"):
        (folder / "gpudoctor").mkdir(parents=True)
        (folder / "gpudoctor" / "config.yaml").write_text("deadline_s: 3\n")
    monkeypatch.chdir(tmp_path)
    assert load_config(None, {"HOME": "/nowhere", **environ}, registry, system_file=NOWHERE) == Config()


def test_null_takes_a_key_back_to_its_default(tmp_path: Path) -> None:
    system = tmp_path / "etc.yaml"
    system.write_text("deadline_s: 3\n")
    explicit = tmp_path / "mine.yaml"
    explicit.write_text("deadline_s: null\n")
    config = load_config(explicit, {"HOME": str(tmp_path)}, registry, system_file=system)
    assert config.deadline_s == Config().deadline_s


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"level: " + b"x" * (1 << 20)])
def test_a_file_that_is_no_text_or_too_large_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load_config(path, {"HOME": str(tmp_path)}, registry, system_file=NOWHERE)


DEEP = "thresholds:\n  gpu.temperature:\n    "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("level: quick\nprofle: x\n", ("line 2: ", "profle", "profile")),
        ("level: quick\n\nexpect:\n  gpu: 8\n", ("line 4: ", "expect.gpu", "unknown key")),
        ("level: fast\n", ("line 1: ", "level", "fast")),
        ("deadline_s: soon\n", ("line 1: ", "deadline_s", "float")),
        ("skip: [hots]\n", ("line 1: ", "hots", "host")),
        ("thresholds:\n  gpu.nonsense:\n    x: 1\n", ("line 2: ", "thresholds.gpu.nonsense", "no check")),
        ("thresholds:\n  gpu.count:\n    x: 1\n", ("line 3: ", "thresholds.gpu.count.x", "no threshold")),
        ("suppress:\n  - check: gpu.ecc\n    until: 2030-01-01\n", ("line 2: ", "suppress[0]", "reason")),
        ("suppress:\n  - check: gpu.ecc\n    until: soon\n    reason: x\n", ("line 3: ", "until")),
        ("suppress:\n  - check: gpu.ec\n    until: 2030-01-01\n    reason: x\n", ("line 2: ", "gpu.ec", "gpu.ecc")),
        (
            "suppress:\n  - check: '*'\n    until: 2030-01-01\n    reason: x\n",
            ("line 2: ", "suppress[0].check", "everything: true"),
        ),
        ("suppress:\n  - check: '[!z]*.*'\n    until: 2030-01-01\n    reason: x\n", ("line 2: ", "everything: true")),
        ("level: quick\n  bad: [\n", ("line 2: ",)),
        ("- a\n", ("mapping",)),
        ("a: &x 1\nb: *x\n", ("aliases",)),
        ("level: !!python/object/apply:os.system [id]\n", ("line 1: ", "python")),
        ("a: 1\nexpect: " + "[" * 60000, "line 2: nested deeper than 32 levels"),
        ("expect: " + "{a: " * 60000, "line 1: nested deeper than 32 levels"),
        ("- " * 60000, "line 1: nested deeper than 32 levels"),
        ("skip: [" + "a, " * 60000 + "]", "line 1: too many values"),
        ("profile: 1" + ":59" * 9000, "line 1: a value of more than 4096 characters"),
        ("%TAG !a! b\n---\nlevel: quick\n", "line 1: YAML tags are not allowed"),
        (
            "level: quick\nsuppress:\n  - until: 2027-13-45\n",
            "line 3: suppress[0].until: 2027-13-45 is no number or date",
        ),
        ("suppress: [{until: 2020-99-99}]", "line 1: suppress[0].until: 2020-99-99 is no"),
        ("\ndeadline_s: " + "9" * 4001, "line 2: deadline_s: 999"),
        ("deadline_s: 1" + ":59" * 1000 + ".5", "line 1: deadline_s: 1:59:59"),
        ("\ndeadline_s: !!float abc", "line 2: YAML tags are not allowed here: tag:yaml.org,2002:float"),
        ("deadline_s: 0", "line 1: deadline_s: Expected `float` > 0"),
        ("deadline_s: -1", "line 1: deadline_s: -1: a number from 0"),
        ("deadline_s: .nan", "line 1: deadline_s: .nan: a number from 0"),
        ("deadline_s: 1e12", "line 1: deadline_s: Expected `float`"),
        ("expect:\n  gpus: -1", "line 2: expect.gpus: -1: a number from 0"),
        ("expect:\n  gpus: true", "line 2: expect.gpus: Expected `int | null`, got `bool`"),
        ("level: quick\nexpect: {gpus: 8}\nlevel: full", "line 3: level: this key is there twice, first in line 1"),
        ("expect:\n  gpus: 8\n  'gpus': 4", "line 3: expect.gpus: this key is there twice, first in line 2"),
        ("level: quick\n1: 2", "line 2: the top level: the key 1 must be text"),
        ("expect:\n  no: 2", "line 2: expect: the key no must be text"),
        ("expect:\n  [a]: 2", "line 2: expect: a key is text"),
        ("<<: {level: quick}", "line 1: the top level: the key << must be text"),
        (DEEP + "high_c: .inf", "line 3: thresholds.gpu.temperature.high_c: .inf: a number from 0"),
        (DEEP + "high_c: .nan", "line 3: thresholds.gpu.temperature.high_c: .nan: a number from 0"),
        (DEEP + "high_c: -3", "line 3: thresholds.gpu.temperature.high_c: -3: a number from 0"),
        (DEEP + "a: 1\n    b: x", "line 4: thresholds.gpu.temperature.b: Expected `float | object`, got `str`"),
        (DEEP + "models:\n      H.[1]:\n        b: x", "line 5: thresholds.gpu.temperature.models.H.[1].b: Expected"),
        (DEEP + "a: 1\n    b: x\nlevel: fast\nsuppress: 7", "line 4: thresholds.gpu.temperature.b: Expected"),
        ("skip:\n  - gpu.ecc\n  - hots", "line 3: skip[1]: no check is called 'hots'"),
        ("level: quick\n---\nlevel: full", "line 2: not valid YAML: but found another document"),
        ("level: quick\nprofile: a\x07", "line 2: not valid YAML: control characters"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line_with_file_line_and_key(
    text: str, words: str | tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'gpudoctor.yaml'}")
    assert [word for word in ((words,) if isinstance(words, str) else words) if word not in message] == []
    assert "\n" not in message
    assert len(message) < 700


def test_all_checks_are_suppressed_by_a_key_of_its_own_and_domains_without(tmp_path: Path) -> None:
    rest = "until: 2030-01-01, reason: moving house"
    everything = load(f"suppress: [{{check: '*', everything: true, {rest}}}]", tmp_path)
    assert everything.suppress[0].everything
    assert [rule.check for rule in load(f"suppress: [{{check: 'gpu.*', {rest}}}]", tmp_path).suppress] == ["gpu.*"]


@pytest.mark.parametrize("bus_id", ["0000:12:00.0", "12:00.0", "81:00.0"])
def test_a_bus_id_without_quotes_is_a_bus_id_and_no_number_to_the_base_60(bus_id: str, tmp_path: Path) -> None:
    text = f"suppress: [{{check: gpu.ecc, until: 2030-01-01, reason: known, gpu: {bus_id}}}]"
    assert [rule.gpu for rule in load(text, tmp_path).suppress] == [bus_id]


def test_a_long_key_is_cut(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 1: k{196} \.\.\.: unknown key") as caught:
        load(f"{'k' * 1000}: 1", tmp_path)
    assert len(str(caught.value)) < 500


def test_a_pipe_a_device_a_folder_and_a_huge_file_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for name, words in {
        tmp_path / "pipe": "not a regular file",
        tmp_path / "folder": "not a regular file",
        Path("/dev/zero"): "not a regular file",
        tmp_path / "huge": "larger than 1 MiB",
    }.items():
        with pytest.raises(ConfigError, match=f"{name}: {words}"):
            load_config(name, {"HOME": str(tmp_path)}, registry, system_file=NOWHERE)


def test_a_configuration_can_be_masked_with_dev_null(tmp_path: Path) -> None:
    assert load_config(Path("/dev/null"), {"HOME": str(tmp_path)}, registry, system_file=NOWHERE) == Config()


def refusing(monkeypatch: pytest.MonkeyPatch, method: str, path: Path) -> None:
    """The tests may run as root, whom no file mode keeps out."""
    real = getattr(Path, method)

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, method, refuse)


def test_a_home_that_may_not_be_entered_is_as_if_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, "stat", tmp_path / ".config" / "gpudoctor" / "config.yaml")
    assert load_config(None, {"HOME": str(tmp_path)}, registry, system_file=NOWHERE) == Config()


def test_a_users_file_that_is_there_and_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / ".config" / "gpudoctor" / "config.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("level: quick\n")
    refusing(monkeypatch, "open", mine)
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read: Permission denied"):
        load_config(None, {"HOME": str(tmp_path)}, registry, system_file=NOWHERE)


def test_without_a_file_no_yaml_is_imported() -> None:
    code = (
        "import sys, pathlib; from gpudoctor.api.config import load_config;"
        "load_config(None, {'HOME': '/nonexistent'}, tuple, pathlib.Path('/nonexistent'));"
        "print('yaml' in sys.modules, 'gpudoctor.text.yaml_file' in sys.modules)"
    )
    ran = completed([sys.executable, "-c", code], check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_the_command_line_ends_with_2_and_one_line(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("suppress: [{until: 2027-13-45}]\n")
    ended = gpudoctor("config", "--config", str(mine))
    assert_refused(ended, "mine.yaml, line 1: suppress[0].until: 2027-13-45")


def test_a_missing_explicit_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "gone.yaml", {"HOME": str(tmp_path)}, registry, system_file=NOWHERE)


def test_thresholds_are_kept_per_check_and_per_model(tmp_path: Path) -> None:
    check = next(c for c in registry() if c.limits)
    name = next(iter(check.limits))
    text = f"thresholds:\n  {check.id}:\n    {name}: 7\n    models:\n      H100:\n        {name}: 9\n"
    assert threshold_overrides(load(text, tmp_path)) == {(check.id, name, ""): 7.0, (check.id, name, "H100"): 9.0}


def test_the_printed_configuration_is_a_configuration(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    until = datetime.date(2031, 1, 2)
    mine.write_text(f"fail_on: warn\nsuppress: [{{check: gpu.ecc, until: {until}, reason: 'ticket 7', gpu: 3}}]\n")
    printed = gpudoctor("config", "--config", str(mine))
    assert printed.code == 0
    again = load(printed.out, tmp_path)
    assert again.fail_on == "warn"
    assert again.suppress[0].until == until
    shown = yaml.safe_load(printed.out)["thresholds"]
    assert set(shown) == {c.id for c in registry() if c.limits}


_NEWER = """\
expect: {gpus: 8, nvlinks: 18}
colour: green
thresholds:
  gpu.taste: {sweet: 1}
suppress:
  - {check: gpu.xid, reason: known, until: 2099-01-01, racks: r7}
  - {check: host.shm, reason: known, until: 2099-01-01}
  - {check: gpu.taste, reason: known, until: 2099-01-01}
  - {check: "*", reason: known, until: 2099-01-01}
"""


def test_what_a_newer_version_may_know_is_left_out_with_a_warning_and_refused_if_strict(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    """One file for all nodes of a fleet must not cost the verdicts of those with the older version."""
    file = tmp_path / "config.yaml"
    file.write_text(_NEWER.rpartition("  - {")[0])
    command = ("check", "--level", "quick", "--node", "hgx-h100-8", "--fault", "xid-79@3", "--config", str(file))

    outcome, strict = gpudoctor(*command, "--json"), gpudoctor(*command, "--strict")

    left_out = [note for note in outcome.json["run"]["notes"] if note.startswith("WARN configuration: ")]
    assert [note.split(", line ")[1].partition(": ")[0] for note in left_out] == ["1", "2", "6", "4", "8"]
    assert all(note.endswith("; left out") for note in left_out)
    # a suppression without a part of it would suppress more: it is left out whole
    assert outcome.json["reason"].startswith("FAIL gpu.xid GPU 3")
    assert (strict.code, "unknown key" in strict.err) == (2, True)


def test_after_what_was_left_out_an_error_still_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(_NEWER)
    with pytest.raises(ConfigError, match=r"line 9: suppress\[.\].*"):
        load_config(file, {}, registry, tmp_path / "none", left_out=lambda line: None)


@pytest.mark.parametrize(
    ("host", "reason", "code"),
    [
        ("gpu3", "PASS", 0),
        ("gpu3.cluster.example", "PASS", 0),
        ("gpu5", "FAIL gpu.xid GPU 3", 1),
        ("gpu9", "FAIL gpu.count", 1),
    ],
)
def test_what_is_for_some_hosts_holds_on_no_other(
    gpudoctor: Gpudoctor, tmp_path: Path, host: str, reason: str, code: int
) -> None:
    file, facts = tmp_path / "config.yaml", tmp_path / "facts.json"
    file.write_text(
        "hosts:\n"
        '  - {hosts: "gpu[1-4]", suppress: [{check: gpu.xid, gpu: 3, reason: ticket 12, until: 2099-01-01}]}\n'
        '  - {hosts: "gpu[8-9]", expect: {gpus: 9}}\n'
    )
    node = gpudoctor("facts", "--node", "hgx-h100-8", "--fault", "xid-79@3").json
    node["host"]["hostname"] = host
    facts.write_text(json.dumps(node))
    outcome = gpudoctor("check", "--level", "quick", "--node", str(facts), "--config", str(file), "--json")
    named = [fault["check"] for fault in outcome.json["faults"]] if code else []
    assert (outcome.code, outcome.json["reason"].split(" ")[0]) == (code, reason.split(" ")[0])
    assert not code or reason.split(" ")[1] in named
