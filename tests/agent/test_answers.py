"""What the agent serves: the paths, the metrics, the allowed clients."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from gpudoctor.agent.run_agent import token_of
from gpudoctor.checks.core.finding import Status
from gpudoctor.cli.parsing import parsed
from gpudoctor.errors import UserError
from gpudoctor.http.address import ListenAddress, listen_address
from gpudoctor.http.listener import BoundedListener
from gpudoctor.http.server import serving
from tests.agent.running import DEADLINE_S, FAULTY, HEALTHY, TOKEN, Agent, agent, refused, wait_for
from tests.cli.conftest import Gpudoctor, gpudoctor
from tests.subprocesses import completed

__all__ = ["gpudoctor"]  # the fixture


def address_of(text: str) -> ListenAddress:
    return listen_address(text, "--listen", "127.0.0.1:9464")


def test_healthz_says_503_and_why_for_a_fault(faulty: Agent) -> None:
    answer = faulty.ask("/healthz")
    assert answer.status == 503
    assert answer.body.startswith("SIMULATED FAIL pcie.link-width GPU 5")
    assert answer.body.count("\n") == 1
    assert faulty.metrics().of("gpudoctor_agent_healthy") == [0]


def test_report_is_the_checks_own_and_says_that_the_node_is_simulated(faulty: Agent) -> None:
    answer, report = faulty.ask("/report"), faulty.report()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert int(answer.headers["Age"]) < DEADLINE_S * 10
    assert (report["schema"], report["verdict"], report["simulated"]) == ("gpudoctor.report/1", "fail", True)
    assert [fault["check"] for fault in report["faults"]] == ["pcie.link-width"]


def test_every_check_has_exactly_one_status_on_each_gpu(faulty: Agent) -> None:
    told = faulty.metrics()["gpudoctor_check_status"]
    states = {(labels["check"], labels["gpu"]): labels["status"] for labels, _ in told}
    assert len(states) == len(told)
    assert {value for _, value in told} == {1}
    assert set(states.values()) <= {status.value for status in Status}
    assert states["pcie.link-width", "5"] == "fail"
    assert states["pcie.link-width", "4"] == "pass"


def test_the_metrics_are_those_of_check_and_the_agents_own(faulty: Agent) -> None:
    metrics = faulty.metrics()
    assert metrics.of("gpudoctor_verdict", verdict="fail") == [1]
    assert metrics.of("gpudoctor_verdict", verdict="pass") == [0]
    assert metrics.of("gpudoctor_check_value_lanes", check="pcie.link-width", gpu="5") == [8]
    assert metrics.of("gpudoctor_check_threshold_lanes", check="pcie.link-width", gpu="5", op=">=") == [16]
    assert metrics.of("gpudoctor_faults") == [1]
    assert metrics.of("gpudoctor_run_exit_code") == [1]
    assert 0 < metrics.of("gpudoctor_run_duration_seconds")[0] < DEADLINE_S
    assert len(metrics.of("gpudoctor_gpu_info", name="NVIDIA H100 80GB HBM3")) == 8
    assert metrics.of("gpudoctor_agent_alarm", check="pcie.link-width", gpu="5", status="fail") == [1]
    assert metrics.of("gpudoctor_agent_alarms") == [1]
    assert metrics.of("gpudoctor_agent_strikes", check="pcie.link-width", gpu="5") == [1]
    assert metrics.of("gpudoctor_agent_report_fresh") == metrics.of("gpudoctor_agent_state_kept") == [1]
    assert metrics.of("gpudoctor_agent_runs_total", outcome="report") == [1]


@pytest.mark.wide
def test_healthz_says_what_the_configuration_sets_aside(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("suppress: [{check: pcie, until: 2999-01-01, reason: riser is ordered}]\n")
    with agent(tmp_path / "agent", *FAULTY, "--config", str(config)) as it:
        metrics = it.after_run()
        answer = it.ask("/healthz")
    assert answer.status == 200
    assert ", 1 suppressed (" in answer.body
    assert metrics.of("gpudoctor_suppressed_findings") == [1]


def test_every_metric_of_a_simulated_node_says_so_and_none_has_a_label_without_bound(faulty: Agent) -> None:
    known = {"check", "gpu", "uuid", "status", "verdict", "part", "unit", "op", "name", "pci_bus_id"}
    known |= {"version", "level", "source", "outcome", "simulated"}
    for name, samples in faulty.metrics().items():
        if name.startswith("gpudoctor_"):
            assert {labels["simulated"] for labels, _ in samples} == {"true"}, name
            assert {label for labels, _ in samples for label in labels} <= known, name


def test_openmetrics_is_served_to_those_who_ask_for_it(faulty: Agent) -> None:
    answer = faulty.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.body.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/metrics", 200),
        ("GET", "/metrics?name=x", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/report/..%2fmetrics", 404),
        ("POST", "/report", 405),
        ("DELETE", "/metrics", 405),
        ("OPTIONS", "*", 400),
        ("GET", "http://127.0.0.1/metrics", 400),
    ],
)
def test_only_three_paths_and_two_methods_are_answered(faulty: Agent, method: str, path: str, status: int) -> None:
    answer = faulty.ask(path, method)
    assert answer.status == status
    assert (method == "HEAD") == (answer.body == "")
    assert status == 200 or answer.body.count("\n") == 1
    assert int(answer.headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "[::1", "10.0.0.1", ""]
)
def test_a_name_of_the_internet_that_was_pointed_here_gets_nothing(faulty: Agent, host: str) -> None:
    for path in ("/metrics", "/healthz", "/report", "/nothing"):
        assert faulty.ask(path, Host=host).status == 403


def answer_to(agent: Agent, sent: bytes) -> bytes:
    """Everything received until the agent ends the connection."""
    with socket.create_connection((agent.host, agent.port), DEADLINE_S) as client:
        client.sendall(sent)
        answer = b""
        while chunk := client.recv(65536):
            answer += chunk
    return answer


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET / HTTP/3\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    ],
)
def test_what_is_no_request_gets_one_line_and_the_end_of_the_connection(faulty: Agent, sent: bytes) -> None:
    answer = answer_to(faulty, sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] in (b"400", b"431")
    assert body.startswith(b"gpudoctor: ")
    assert body.count(b"\n") == 1
    assert faulty.ask("/healthz").status == 503


def test_the_head_of_a_request_has_16_kib_and_no_more(faulty: Agent) -> None:
    for size, status in ((150, b"200"), (200, b"431")):
        headers = (b"X: " + b"y" * (size - 5) + b"\r\n") * 100
        assert answer_to(faulty, b"GET /metrics HTTP/1.0\r\n" + headers + b"\r\n").split(b" ")[1] == status


def test_idle_clients_are_bounded_and_keep_nobody_else_waiting(faulty: Agent) -> None:
    """40 sockets that ask for nothing starved /healthz: Kubernetes then restarts the pod."""
    clients = [socket.create_connection((faulty.host, faulty.port), DEADLINE_S) for _ in range(72)]
    try:
        for client in clients[::2]:
            with suppress(OSError):  # dropped already
                client.sendall(b"GET /metrics HTT")
        assert [faulty.ask("/healthz").status for _ in range(5)] == [503] * 5
        assert psutil.Process(faulty.process.pid).num_fds() < 80
        dropped: set[socket.socket] = set()

        def are_dropped() -> bool:
            dropped.update(select.select(clients, [], [], 0.1)[0])
            return len(dropped) >= 40

        wait_for(are_dropped)
        assert dropped >= set(clients[:30]), "the oldest go first"
    finally:
        for client in clients:
            client.close()


LARGE = 32 << 20


@asynccontextmanager
async def large_answers(listener: BoundedListener) -> AsyncIterator[tuple[tuple[str, int], asyncio.Event]]:
    """A server that answers more than a connection buffers: its address, and an event set on a request."""
    asked = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.Response:
        listener.heard(request.transport)
        asked.set()
        return web.Response(body=b"x" * LARGE)

    bound = address_of("127.0.0.1:0").listening_sockets()
    async with serving(web.ServerRunner(web.Server(answer), shutdown_timeout=0.1), bound, listener):
        yield bound[0].getsockname(), asked


async def test_a_client_that_sends_or_reads_too_slowly_is_dropped() -> None:
    listener = BoundedListener(2, 0.2, until_heard=False)
    async with large_answers(listener) as (address, asked):
        sending, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HT")
        assert await sending.read() == b""
        reading, asking = await asyncio.open_connection(*address)
        asking.write(b"GET / HTTP/1.0\r\n\r\n")
        asking.transport.pause_reading()  # type: ignore[attr-defined]
        await asked.wait()
        while listener.connections:
            await asyncio.sleep(0.01)
        asking.transport.resume_reading()  # type: ignore[attr-defined]
        with suppress(ConnectionResetError):
            assert len(await reading.read()) < LARGE
        writer.close()
        asking.close()


async def test_a_client_whose_request_has_come_is_not_dropped_for_another() -> None:
    async with large_answers(BoundedListener(1, 10 * DEADLINE_S, until_heard=False)) as (address, asked):
        first, asking = await asyncio.open_connection(*address)
        asking.write(b"GET / HTTP/1.0\r\n\r\n")
        await asked.wait()
        second, late = await asyncio.open_connection(*address)
        late.write(b"GET / HTTP/1.0\r\n\r\n")
        with suppress(ConnectionResetError):
            assert await second.read() == b""
        head, _, sent = (await first.read()).partition(b"\r\n\r\n")
        assert (head.split(b"\r\n")[0], len(sent)) == (b"HTTP/1.0 200 OK", LARGE)
        asking.close()
        late.close()


def test_the_agent_is_small_and_its_runs_are_not_in_it(faulty: Agent) -> None:
    assert psutil.Process(faulty.process.pid).memory_info().rss < 64 << 20
    code = (
        "import sys, gpudoctor.cli.commands.agent, gpudoctor.agent.run_agent, gpudoctor.agent.schedule;"
        "import gpudoctor.agent.answers, asyncio;"
        "print(*sys.modules)"
    )
    done = completed([sys.executable, "-c", code], check=True)
    loaded = set(done.stdout.split())
    assert "gpudoctor.agent.schedule" in loaded
    assert not loaded & {"torch", "textual", "rich", "pynvml", "psutil", "yaml", "gpudoctor.cli.commands.check"}


def test_any_other_address_wants_a_token_and_healthz_does_not(tmp_path: Path, gpudoctor: Gpudoctor) -> None:
    for text in ("0.0.0.0:0", "[::]:0", "10.0.0.3:80"):
        done = gpudoctor("agent", "--listen", text)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "there must be a token, and none was given" in done.err
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    with agent(tmp_path, *HEALTHY, "--token-file", str(file), listen="0.0.0.0:0", GPUDOCTOR_AGENT_TOKEN="x" * 20) as it:
        it.host = "127.0.0.1"
        assert wait_for(lambda: it.ask("/healthz").status == 200)
        # strangers learn whether, not why
        assert it.ask("/healthz").body == "SIMULATED healthy\n"
        assert "PASS" in it.ask("/healthz", Authorization=f"Bearer {TOKEN}").body
        for path in ("/metrics", "/report", "/nothing"):
            others = (f"Bearer {other}" for other in (f"{TOKEN}x", TOKEN[:-1], "x" * 20))
            for wrong in ("", TOKEN, "Bearer", f"Basic {TOKEN}", *others):
                answer = it.ask(path, Authorization=wrong)
                assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        right = f"Bearer {TOKEN}"
        assert it.metrics(Authorization=right, Host="any.example").of("gpudoctor_verdict", verdict="pass") == [1]
        assert it.ask("/report", Authorization=right.lower()).status == 200
        assert it.ask("/nothing", Authorization=right).status == 404
        assert TOKEN not in " ".join(psutil.Process(it.process.pid).cmdline()) + it.words()


@pytest.mark.wide
def test_ipv6_is_written_in_brackets(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with agent(tmp_path, *HEALTHY, listen="[::1]:0") as it:
        assert f"http://[::1]:{it.port}/" in it.line
        assert it.ask("/healthz").status in (200, 503)


def test_a_taken_port_and_bad_arguments_are_one_line(tmp_path: Path, faulty: Agent, gpudoctor: Gpudoctor) -> None:
    taken = f"127.0.0.1:{faulty.port}"
    short = tmp_path / "short"
    short.write_text("1234567")
    short.chmod(0o600)
    for options, word in (
        (("--listen", taken), taken),
        (("--token-file", str(tmp_path / "none")), "No such file"),
        (("--token-file", str(short)), "at least 8"),
        (("--node", "no-such-node"), "no-such-node"),
        (("--node", "-"), "stdin"),
        (("--fault", "xid-79"), "--node"),
        (("--node", "hgx-h100-8", "--fault", "no-such-fault"), "no-such-fault"),
        (("--state", "/proc/nothing/here", *HEALTHY), "/proc/nothing/here"),
    ):
        done = gpudoctor("agent", "--listen", "127.0.0.1:0", *options)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
        assert word in done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize("option", [("--interval", "0"), ("--interval", "nan"), ("--strikes", "0"), ("--jitter", "-1")])
def test_numbers_out_of_range_are_refused(option: tuple[str, str]) -> None:
    with pytest.raises(UserError, match=f"argument {option[0]}"):
        parsed(["agent", "=".join(option)])


@pytest.mark.parametrize(("text", "word"), [("::1:80", "brackets"), ("no.such.name.invalid:80", "cannot be resolved")])
def test_what_is_no_address_is_one_clear_line(text: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        _ = address_of(text).is_loopback


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("library", ["prometheus_client", "aiohttp"])
def test_without_a_library_the_line_says_what_to_install(tmp_path: Path, library: str) -> None:
    (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError(name={library!r})\n")
    where = f"{tmp_path}:{Path(__file__).parents[2]}"
    done = refused(tmp_path, PYTHONPATH=where)
    assert (done.code, done.err.count("\n")) == (2, 1)
    install = "pip install 'prometheus-client>=0.20' 'aiohttp>=3.9,<4'"
    assert f"agent needs {library.replace('_', '-')}, which this Python lacks: {install}" in done.err
    once = refused(tmp_path, "--once", *HEALTHY, PYTHONPATH=where)  # which serves nothing
    assert (once.code, once.out.startswith("SIMULATED PASS"), once.err) == (0, True, "")


@pytest.mark.parametrize("text", ["127.0.0.1:9464", "localhost:0", "[::1]:80", ":9464", "9464", "127.8.8.8"])
def test_loopback_wants_no_token_and_takes_one(text: str) -> None:
    assert token_of(None, {}, address_of(text)) is None
    assert token_of(None, {"GPUDOCTOR_AGENT_TOKEN": TOKEN}, address_of(text)) == TOKEN
