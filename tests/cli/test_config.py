"""The configuration file: what it changes, and how it says that it is wrong."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import yaml

from gpudoctor.checks.registry import registry
from gpudoctor.config import Config, ConfigError, load_config, threshold_overrides
from tests.cli.conftest import Gpudoctor

NOWHERE = Path("/nonexistent/config.yaml")


def load(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "gpudoctor.yaml"
    path.write_text(text)
    return load_config(path, {"HOME": str(tmp_path)}, registry(), system_file=NOWHERE)


def test_without_any_file_the_defaults_hold(tmp_path: Path) -> None:
    config = load_config(None, {"HOME": str(tmp_path)}, registry(), system_file=NOWHERE)
    assert config == Config()
    assert (config.level, config.fail_on, config.deadline_s) == ("standard", "fail", 10.0)


def test_the_explicit_file_wins_over_the_users_and_the_users_over_the_systems(tmp_path: Path) -> None:
    system = tmp_path / "etc.yaml"
    system.write_text("level: quick\nfail_on: warn\ndeadline_s: 3\n")
    user = tmp_path / "xdg" / "gpudoctor" / "config.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("fail_on: never\ndeadline_s: 4\n")
    explicit = tmp_path / "mine.yaml"
    explicit.write_text("deadline_s: 5\n")
    config = load_config(explicit, {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}, registry(), system_file=system)
    assert (config.level, config.fail_on, config.deadline_s) == ("quick", "never", 5.0)


def test_null_takes_a_key_back_to_its_default(tmp_path: Path) -> None:
    system = tmp_path / "etc.yaml"
    system.write_text("deadline_s: 3\n")
    explicit = tmp_path / "mine.yaml"
    explicit.write_text("deadline_s: null\n")
    config = load_config(explicit, {"HOME": str(tmp_path)}, registry(), system_file=system)
    assert config.deadline_s == Config().deadline_s


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("level: quick\nprofle: x\n", 2, ("profle", "profile")),
        ("level: quick\n\nexpect:\n  gpu: 8\n", 4, ("expect.gpu", "unknown key")),
        ("level: fast\n", 1, ("level", "fast")),
        ("deadline_s: soon\n", 1, ("deadline_s", "float")),
        ("skip: [hots]\n", 1, ("hots", "host")),
        ("thresholds:\n  gpu.nonsense:\n    x: 1\n", 2, ("thresholds.gpu.nonsense", "no check")),
        ("thresholds:\n  gpu.count:\n    x: 1\n", 3, ("thresholds.gpu.count.x", "no threshold")),
        ("suppress:\n  - check: gpu.ecc\n    until: 2030-01-01\n", 2, ("suppress[0]", "reason")),
        ("suppress:\n  - check: gpu.ecc\n    until: soon\n    reason: x\n", 3, ("until",)),
        ("suppress:\n  - check: gpu.ec\n    until: 2030-01-01\n    reason: x\n", 2, ("gpu.ec", "gpu.ecc")),
        ("level: quick\n  bad: [\n", 2, ()),
        ("- a\n", None, ("mapping",)),
        ("a: &x 1\nb: *x\n", None, ("aliases",)),
        ("level: !!python/object/apply:os.system [id]\n", 1, ("python",)),
    ],
)
def test_a_wrong_file_is_one_line_with_file_line_and_key(
    text: str, line: int | None, words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "gpudoctor.yaml" in message
    assert line is None or f"line {line}" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"level: " + b"x" * (1 << 20)])
def test_a_file_that_is_no_text_or_too_large_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load_config(path, {"HOME": str(tmp_path)}, registry(), system_file=NOWHERE)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load("expect: " + "[" * 20000, tmp_path)


def test_a_missing_explicit_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: No such file"):
        load_config(tmp_path / "gone.yaml", {"HOME": str(tmp_path)}, registry(), system_file=NOWHERE)


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
