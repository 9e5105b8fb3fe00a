"""Emulated hosts: each has its own address, hostname and /etc/hosts, and all share this machine's files.

Made of network, UTS and mount namespaces. The bridge between them is in its own namespace, so that nothing appears on
the real network, and names carry this process's id, so that two test runs do not clash.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.subprocesses import completed

TOOLS = ("root", "ip", "tc", "nsenter", "unshare", "mount")
LOGIN = 0  # the number of the login host, `ctl`
# not `ip netns exec`: that remounts /sys, and without /sys/fs/cgroup slurmd does not start
_ENTER = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'


class EmulationError(Exception):
    """This machine allows no emulated hosts; the text is the reason of a skip."""


class Hosts:
    """Hosts 1 to `count` (`node1` at 10.77.0.1, ...), and host 0, `ctl`, at 10.77.0.254.

    with Hosts(4) as hosts:
        hosts.slow(3, "100mbit")
        hosts.run(1, ["ping", "-c1", "node3"])

    On leaving, also by an exception, every process on the hosts is killed and every namespace removed. Raises
    EmulationError if the machine does not let this user make hosts.
    """

    def __init__(self, count: int = 4) -> None:
        self.count = count
        self.folder = Path()  # scratch, the same on every host; set on entering
        self._prefix = f"gd{os.getpid()}x{id(self) & 0xFFFF:x}"
        self._made: list[str] = []

    def __enter__(self) -> Hosts:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Make the hosts; entering the context does this."""
        self.folder = Path(tempfile.mkdtemp(prefix="gpudoctor-hosts-"))
        self._table.write_text(
            "127.0.0.1 localhost\n" + "".join(f"{self.address(i)} {self.name(i)}\n" for i in range(self.count + 1))
        )
        try:
            self._make()
            self.run(LOGIN, ["true"], timeout=60).check_returncode()
        except (EmulationError, subprocess.CalledProcessError) as error:
            self.close()
            why = getattr(error, "stderr", None) or str(error)
            raise EmulationError(f"no emulated hosts on this machine: {why}") from error
        except BaseException:
            self.close()
            raise

    @property
    def numbers(self) -> range:
        """1 to `count`: every host but the login host."""
        return range(1, self.count + 1)

    @staticmethod
    def name(i: int) -> str:
        """The hostname of host `i`."""
        return "ctl" if i == LOGIN else f"node{i}"

    @staticmethod
    def address(i: int) -> str:
        """The IPv4 address of host `i`, on its interface eth0."""
        return f"10.77.0.{254 if i == LOGIN else i}"

    def command(self, i: int, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs `command` on host `i`: for a file that another program starts, as an rsh agent."""
        enter = ["nsenter", f"--net=/run/netns/{self._space(i)}", "unshare", "--uts", "--mount"]
        return [*enter, "sh", "-c", _ENTER, str(self._table), self.name(i), *map(str, command)]

    def popen(
        self, i: int, command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start `command` on host `i`, with `env` on top of this process's; both streams are pipes of text."""
        return subprocess.Popen(
            self.command(i, command),
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        i: int,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` on host `i` to its end.

        Past `timeout` seconds it and its children are killed and TimeoutExpired, with what it had printed, is raised.
        """
        process = self.popen(i, command, env, cwd)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(f"{self.name(i)}: {command}", timeout, out, err) from None
            raise
        return subprocess.CompletedProcess(list(map(str, command)), process.returncode, out, err)

    def slow(self, i: int, rate: str) -> None:
        """Limit host `i` to `rate` in both directions, e.g. `100mbit`, until `mend`."""
        self.mend(i)
        for space, device in self._ends(i):
            limit = ["tbf", "rate", rate, "burst", "128kb", "latency", "100ms"]
            _tool(["tc", "-n", space, "qdisc", "add", "dev", device, "root", *limit])

    def cut(self, i: int) -> None:
        """Take host `i` off the network until `mend`, as if its cable were pulled."""
        _tool(["ip", "-n", self._switch, "link", "set", f"p{i}", "down"])

    def mend(self, i: int) -> None:
        """Restore the full link of host `i`."""
        _tool(["ip", "-n", self._switch, "link", "set", f"p{i}", "up"])
        for space, device in self._ends(i):
            if "tbf" in _tool(["tc", "-n", space, "qdisc", "show", "dev", device, "root"]):
                _tool(["tc", "-n", space, "qdisc", "del", "dev", device, "root"])

    def kill(self, i: int) -> None:
        """Kill every process on host `i`, daemons too."""
        for pid in _tool(["ip", "netns", "pids", self._space(i)], check=False).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def close(self) -> None:
        """Kill what runs on the hosts and remove them; leaving the context does this, and a second call is harmless."""
        for i in range(self.count + 1):
            if self._space(i) in self._made:
                self.kill(i)
        for space in reversed(self._made):
            _tool(["ip", "netns", "del", space], check=False)
        self._made.clear()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self) -> None:
        self._add_space(self._switch)
        _tool(["ip", "-n", self._switch, "link", "add", "br0", "type", "bridge"])
        _tool(["ip", "-n", self._switch, "link", "set", "br0", "up"])
        for i in range(self.count + 1):
            space = self._space(i)
            self._add_space(space)
            pair = ["type", "veth", "peer", "name", f"p{i}", "netns", self._switch]
            _tool(["ip", "link", "add", "eth0", "netns", space, *pair])
            _tool(["ip", "-n", self._switch, "link", "set", f"p{i}", "master", "br0", "up"])
            _tool(["ip", "-n", space, "addr", "add", f"{self.address(i)}/24", "dev", "eth0"])
            for device in ("eth0", "lo"):
                _tool(["ip", "-n", space, "link", "set", device, "up"])

    def _add_space(self, space: str) -> None:
        _tool(["ip", "netns", "add", space])
        self._made.append(space)

    def _ends(self, i: int) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self._space(i), "eth0"), (self._switch, f"p{i}")

    def _space(self, i: int) -> str:
        return f"{self._prefix}n{i}"

    @property
    def _switch(self) -> str:
        return f"{self._prefix}sw"

    @property
    def _table(self) -> Path:
        return self.folder / "hosts"


def _tool(command: list[str], check: bool = True) -> str:
    done = completed(command)
    if check and done.returncode != 0:
        raise EmulationError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
