"""The emulated hosts themselves: other tests believe them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.hosts import TOOLS, EmulationError, Hosts
from tests.narrowed import present
from tests.needs import missing, needs

# sends 4 MB to the other host's echo of a byte count, and prints how long that took
_RECEIVE = """
import socket
listener = socket.create_server(("", 9000))
print("ready", flush=True)
for _ in range(2):
    peer, _ = listener.accept()
    count = 0
    while chunk := peer.recv(65536):
        count += len(chunk)
    peer.sendall(str(count).encode())
    peer.close()
"""
_SEND = """
import socket, time
started = time.monotonic()
peer = socket.create_connection(("node2", 9000))
peer.sendall(bytes(4_000_000))
peer.shutdown(socket.SHUT_WR)
assert peer.recv(16) == b"4000000"
print(4_000_000 * 8 / (time.monotonic() - started) / 1e6)
"""
_REACH = "import socket; socket.create_connection(('node2', 9001), timeout=2)"
_LISTEN = "import socket,time; s = socket.create_server(('', 9001)); print('ready', flush=True); time.sleep(600)"


def test_each_host_has_its_own_name_and_finds_the_others_by_name(hosts: Hosts) -> None:
    resolve = "import socket; print(socket.gethostname(), socket.gethostbyname('node4'), socket.gethostbyname('ctl'))"

    seen = [hosts.run(i, [sys.executable, "-c", resolve]).stdout.split() for i in (0, 1, 4)]

    assert seen == [[name, "10.77.0.4", "10.77.0.254"] for name in ("ctl", "node1", "node4")]


def test_a_slow_link_is_slow_and_whole_again_when_mended(hosts: Hosts) -> None:
    receiver = hosts.popen(2, [sys.executable, "-c", _RECEIVE])
    assert present(receiver.stdout).readline() == "ready\n"

    hosts.slow(2, "20mbit")
    slow_mbit_s = float(hosts.run(1, [sys.executable, "-c", _SEND]).stdout)
    hosts.mend(2)
    whole_mbit_s = float(hosts.run(1, [sys.executable, "-c", _SEND]).stdout)
    receiver.communicate(timeout=60)

    assert slow_mbit_s < 30 < whole_mbit_s  # a veth moves gigabits


def test_a_host_that_is_cut_off_cannot_be_reached_till_it_is_mended(hosts: Hosts) -> None:
    listener = hosts.popen(2, [sys.executable, "-c", _LISTEN])
    assert present(listener.stdout).readline() == "ready\n"

    hosts.cut(2)
    cut = hosts.run(1, [sys.executable, "-c", _REACH])
    hosts.mend(2)
    mended = hosts.run(1, [sys.executable, "-c", _REACH])
    hosts.kill(2)
    listener.communicate(timeout=60)

    assert cut.returncode != 0
    assert mended.returncode == 0, mended.stderr


@needs(*TOOLS)
def test_nothing_is_left_when_the_block_fails() -> None:
    before = _spaces()
    folders, sleepers = [], []

    def fail_with_a_host_busy() -> None:
        with Hosts(2) as hosts:
            folders.append(hosts.folder)
            sleepers.append(hosts.popen(1, ["sleep", "600"]))
            assert len(_spaces() - before) == 4
            raise KeyError

    try:
        with pytest.raises(KeyError):
            fail_with_a_host_busy()
    except EmulationError as error:
        missing("network namespaces", error)

    assert _spaces() == before
    sleepers[0].communicate(timeout=60)
    assert sleepers[0].returncode == -9
    assert not folders[0].exists()


def test_a_command_that_hangs_is_killed_with_what_it_printed(hosts: Hosts) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        hosts.run(1, ["sh", "-c", "echo so far; sleep 600"], timeout=1)

    assert caught.value.output == "so far\n"


def _spaces() -> set[str]:
    folder = Path("/run/netns")
    return {space.name for space in folder.iterdir()} if folder.is_dir() else set()
