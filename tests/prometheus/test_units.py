"""The systemd units: accepted by systemd, and harmless to what the checks see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpudoctor.cli.parsing import parsed
from gpudoctor.facts.system.services import BUILT_IN_BY_COMM
from tests.needs import find, needs
from tests.prometheus.running import CONTRIB
from tests.subprocesses import completed


@needs("systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = []
    for unit in CONTRIB.glob("gpudoctor-*.*"):
        units.append(str(tmp_path / unit.name))
        # the reader chooses where gpudoctor is installed
        text = unit.read_text(encoding="utf-8").replace("/opt/gpudoctor/bin/gpudoctor", "/bin/true")
        Path(units[-1]).write_text(text, encoding="utf-8")
    assert len(units) == 3
    done = completed(["systemd-analyze", "verify", "--man=no", *units])
    ours = [line for line in done.stderr.splitlines() if "gpudoctor" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


@pytest.mark.parametrize("name", ["gpudoctor-agent.service", "gpudoctor-textfile.service"])
def test_no_unit_hides_the_driver_or_sets_a_limit_that_a_check_would_judge(name: str) -> None:
    text = (CONTRIB / name).read_text(encoding="utf-8")
    settings = {line.partition("=")[0] for line in text.splitlines() if "=" in line and not line.startswith("#")}
    for harmful in (
        *("MemoryMax", "MemoryHigh", "CPUQuota", "CPUAffinity", "AllowedCPUs", "PrivateDevices", "DevicePolicy"),
        *("DeviceAllow", "ProtectClock", "ProtectKernelLogs", "PrivateNetwork", "ProtectProc", "PrivateIPC"),
    ):
        assert harmful not in settings
    assert {"LimitMEMLOCK", "LimitNOFILE", "NoNewPrivileges", "ProtectSystem"} <= settings
    words = re.findall(r"^ExecStart=(\S+) (.+)$", text, re.MULTILINE)[0][1].split()
    assert parsed(words).command == words[0]  # options that there are


@needs("prometheus-node-exporter")
def test_the_timer_writes_where_debians_node_exporter_reads_and_may_write_there() -> None:
    text = (CONTRIB / "gpudoctor-textfile.service").read_text(encoding="utf-8")
    [folder] = re.findall(r"^Environment=TEXTFILE_DIRECTORY=(\S+)$", text, re.MULTILINE)
    assert re.search(r"^ExecStart=.* -o \$\{TEXTFILE_DIRECTORY\}/\w+\.prom$", text, re.MULTILINE)
    [writable] = re.findall(r"^ReadWritePaths=(.+)$", text, re.MULTILINE)
    assert f"-{folder}" in writable.split()
    assert folder == BUILT_IN_BY_COMM["prometheus-node"]
    command = [str(find("prometheus-node-exporter")), "--help"]
    done = completed(command)
    assert f'--collector.textfile.directory="{folder}"' in done.stdout + done.stderr
