"""A service manager, or a user, that starts gpudoctor without standard streams."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.agent.running import environ, wait_for

GPUDOCTOR = f"{sys.executable} -m gpudoctor"


def test_no_file_of_the_agents_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """What the C library or the driver prints would go into a socket, or into the state."""
    command = f"exec {GPUDOCTOR} agent --node hgx-h100-8 --listen 127.0.0.1:0 --state {tmp_path / 'state'}"
    agent = subprocess.Popen(["sh", "-c", f"{command} <&- >&- 2>&-"], env=environ(tmp_path))
    try:
        wait_for(lambda: any(at.status == "LISTEN" for at in psutil.Process(agent.pid).net_connections("tcp")), agent)
        assert [str(Path(f"/proc/{agent.pid}/fd/{number}").readlink()) for number in range(3)] == ["/dev/null"] * 3
    finally:
        agent.terminate()
        assert agent.wait(60) == 143


@pytest.mark.wide(every=6)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_the_report_goes_where_it_was_asked_for_and_the_exit_code_says_whether_it_came(
    closed: str, tmp_path: Path
) -> None:
    check = f"exec {GPUDOCTOR} check --level quick --node hgx-h100-8 --json"
    into_file = subprocess.run(["sh", "-c", f"{check} -o {tmp_path}/report.json {closed}"], check=False)
    assert into_file.returncode == 0
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "pass"
    for output in ("", "-o /dev/stdout"):
        done = subprocess.run(["sh", "-c", f"{check} {output} {closed}"], capture_output=True, check=False)
        assert done.returncode == (2 if ">&-" in closed.split() else 0)
        assert bool(done.stdout) is (done.returncode == 0)
