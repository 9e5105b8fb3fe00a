"""The agent as a user runs it: a separate process, queried over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.subprocesses import completed

DEADLINE_S = 60.0  # only stops what hangs
HEALTHY, FAULTY = ("--node", "hgx-h100-8"), ("--node", "hgx-h100-8", "--fault", "pcie-width-x8@5")
TOKEN = "correct-horse-battery"


class Answer(NamedTuple):
    status: int
    body: str
    headers: dict[str, str]


class Metrics(dict[str, list[tuple[dict[str, str], float]]]):
    """Samples by name, as the Prometheus library reads them."""

    def of(self, name: str, /, **labels: str) -> list[float]:
        return [value for has, value in self.get(name, []) if labels.items() <= has.items()]


class Agent:
    """A running agent; `line` is its first line of output, `words()` all of its stderr."""

    def __init__(self, process: subprocess.Popen[str], err: Path) -> None:
        self.process = process
        self._err = err
        self.line = wait_for(lambda: next((x for x in self.words().splitlines() if "http://" in x), None), process)
        found = re.search(r"http://(\S+):(\d+)/", self.line)
        assert found, self.line
        self.host, self.port = found[1].strip("[]"), int(found[2])

    def words(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(), dict(answer.headers))
        finally:
            connection.close()

    def metrics(self, **headers: str) -> Metrics:
        answer = self.ask("/metrics", **headers)
        assert answer.status == 200
        samples = Metrics()
        for family in text_string_to_metric_families(answer.body):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
        return samples

    def report(self) -> Any:
        return json.loads(self.ask("/report").body)

    def after_run(self) -> Metrics:
        """The metrics once the first run has ended, if there was no state before."""
        wait_for(lambda: "no report yet" not in self.ask("/healthz").body, self.process)
        return self.metrics()

    def checks(self) -> list[psutil.Process]:
        """The runs that go on now."""
        found = []
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            with suppress(psutil.NoSuchProcess):  # which a zombie is too
                child = psutil.Process(int(pid))
                found += [child] if "check" in child.cmdline() else []
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str] | subprocess.Popen[bytes] | None = None) -> Any:
    """The first true answer; an error if it does not come, or the process ends before it."""
    give_up_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_s:
        found = what()
        if found:
            return found
        assert process is None or process.poll() is None, f"it ended with {process.returncode}"
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def environ(folder: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUDOCTOR_AGENT", "STATE_D", "CUDA_", "NCCL_"))}
    return {**kept, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state"), **more}


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "gpudoctor", "agent", *options]


@contextmanager
def agent(folder: Path, *options: str, listen: str = "127.0.0.1:0", jitter: str = "0", **env: str) -> Iterator[Agent]:
    """An agent that keeps its state under `folder`; if it still runs at the end it is killed, with its children."""
    folder.mkdir(exist_ok=True)
    err = folder / f"err-{time.monotonic_ns()}"
    with err.open("w") as stream:
        process = subprocess.Popen(
            command("--listen", listen, "--jitter", jitter, *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            text=True,
            env=environ(folder, **env),
        )
    try:
        yield Agent(process, err)
    finally:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait(DEADLINE_S)
            for child in children:
                if child.is_running():
                    child.kill()


class Refused(NamedTuple):
    code: int
    out: str
    err: str


def refused(folder: Path, *options: str, **env: str) -> Refused:
    """An agent that cannot start: its exit code and output."""
    done = completed(command(*options), env=environ(folder, **env))
    return Refused(done.returncode, done.stdout, done.stderr)
