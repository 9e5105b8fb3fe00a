"""An older package `pynvml`, a folder, shadows nvidia-ml-py's pynvml.py: the driver is read by the right one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pynvml
import pytest

from tests.fake_driver.conftest import ROOT, Run

GPUDOCTOR = (sys.executable, "-m", "gpudoctor")
# as pynvml 11.4 does: text comes as bytes, and what drivers after it brought is not there
LEGACY = f"""
from importlib.util import module_from_spec, spec_from_file_location
import sys
spec = spec_from_file_location("legacy_nvml", {pynvml.__file__!r})
nvml = sys.modules["legacy_nvml"] = module_from_spec(spec)
spec.loader.exec_module(nvml)
def as_bytes(name):
    return lambda *args: getattr(nvml, name)(*args).encode()
for name, value in vars(nvml).items():
    if not name.startswith("__") and "Margin" not in name and "Fabric" not in name:
        globals()[name] = value
for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlDeviceGetName", "nvmlDeviceGetUUID"):
    globals()[name] = as_bytes(name)
"""


@pytest.fixture
def legacy(tmp_path: Path) -> dict[str, str]:
    """The environment in which Python prefers the older package."""
    package = tmp_path / "site" / "pynvml"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LEGACY)
    about = tmp_path / "site" / "pynvml-11.4.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 11.4.1\n")
    return {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}


def test_the_folder_is_what_other_programs_get(run: Run, legacy: dict[str, str]) -> None:
    told = "import pynvml; pynvml.nvmlInit(); print(type(pynvml.nvmlSystemGetDriverVersion()).__name__)"
    assert run("hgx-h100-8", sys.executable, "-c", told, env=legacy).stdout == "bytes\n"


@pytest.mark.wide
def test_the_node_is_read_as_without_it_and_the_folder_is_named_once(run: Run, legacy: dict[str, str]) -> None:
    with_it = run("hgx-h100-8", *GPUDOCTOR, "facts", env=legacy)
    without = run("hgx-h100-8", *GPUDOCTOR, "facts")
    node, plain = json.loads(with_it.stdout), json.loads(without.stdout)
    assert (node["gpus"], node["driver"]["library_version"]) == (plain["gpus"], plain["driver"]["library_version"])
    assert node["driver"]["binding_hidden_by"] == "pynvml 11.4.1"
    assert "binding_hidden_by" not in plain["driver"]
    done = run("hgx-h100-8", *GPUDOCTOR, "check", "--level", "quick", env=legacy)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("pip uninstall pynvml") == 1


def test_where_the_folder_is_all_there_is_its_bytes_are_text(run: Run, legacy: dict[str, str]) -> None:
    """nvidia-ml-py was removed by force: the older one still reports what it can."""
    program = """
import importlib.metadata as m
def gone(name):
    raise m.PackageNotFoundError(name)
m.distribution = gone
from gpudoctor.facts.nvml.client import NvmlClient, load_pynvml
client = NvmlClient(load_pynvml())
client.call("nvmlInit")
print(client.call("nvmlSystemGetDriverVersion"))
"""
    assert run("hgx-h100-8", sys.executable, "-c", program, env=legacy).stdout == "570.172.08\n"
