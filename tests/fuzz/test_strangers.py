"""What strangers wrote: logs and dumps of jobs, models to plan for, Slurm's records, requests to the agent."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.agent.answers import AgentAnswers, AgentMetrics
from gpudoctor.agent.node_status import NodeStatus, ScrapeFigures
from gpudoctor.diagnose import build, text
from gpudoctor.diagnose.example_jobs import EXAMPLE_JOBS, log_of
from gpudoctor.diagnose.flight_recorder import DumpError, read_dump
from gpudoctor.diagnose.gather import gather
from gpudoctor.diagnose.sources import find_sources
from gpudoctor.diagnose.stacks import read_ras, read_stacks
from gpudoctor.errors import UserError
from gpudoctor.http.address import HttpAccess
from gpudoctor.plan.hf_config import shape_of_config
from gpudoctor.plan.model_shape import ModelError
from gpudoctor.slurm.drain import drain_reason, is_of_hardware, parse_node
from tests.diagnose.test_flight_recorder import dump
from tests.fuzz import seeds
from tests.fuzz.mutate import Step, mutated, steps
from tests.fuzz.profile import fuzzed
from tests.fuzz.test_parsers import one_line
from tests.narrowed import present

LOGS = tuple(log_of(name).read_bytes() for name in EXAMPLE_JOBS)
STACKS = (
    b'Process 4711: python train.py\nThread 4711 (active): "MainThread"\n    wait (threading.py:320)\n'
    b"    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    main (train.py:40)\n"
)
CONTENT = dump(4)
DUMPS = (*(pickle.dumps(CONTENT, protocol) for protocol in (2, 4, 5)), json.dumps(CONTENT).encode())


@fuzzed("diagnose", few=10)
@given(seed=st.sampled_from((*LOGS, STACKS, seeds.kernel_log())), what=steps, other=st.sampled_from(DUMPS), how=steps)
def test_a_job_is_diagnosed_whatever_its_files_hold(
    seed: bytes, what: list[Step], other: bytes, how: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"job-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    (folder / "train.log").write_bytes(mutated(seed, what))
    (folder / "nccl_trace_rank_1").write_bytes(mutated(other, how))
    sources, unread = find_sources([str(folder)])
    gathered = gather(sources)
    answer = build.diagnose(gathered)
    assert (answer.cause is None) or answer.verdict != "nothing"
    # a file that could not be read is no good news
    assert not (unread or gathered.unread) or answer.verdict != "nothing"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text.render_text(answer, width=100))


@fuzzed("dump")
@given(seed=st.sampled_from(DUMPS), what=steps)
def test_a_flight_recorder_dump_is_read_or_refused_in_one_line(seed: bytes, what: list[Step]) -> None:
    try:
        read_dump(mutated(seed, what), "nccl_trace_rank_1")
    except DumpError as error:
        one_line(UserError(str(error)))


@fuzzed("stacks")
@given(seed=st.sampled_from((STACKS, LOGS[0])), what=steps)
def test_stacks_are_read(seed: bytes, what: list[Step]) -> None:
    lines = mutated(seed, what).decode("utf-8", "replace").split("\n")
    read_stacks(lines, 0)
    read_ras(lines, 0)


CONFIGS = tuple(
    json.dumps(config).encode()
    for config in (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
        },
    )
)


@fuzzed("plan")
@given(seed=st.sampled_from(CONFIGS), what=steps)
def test_the_shape_of_a_model_is_read_or_refused_in_one_line(
    seed: bytes, what: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"config-{os.getpid()}.json"
    path.write_bytes(mutated(seed, what))
    try:
        shape = shape_of_config(path)
    except ModelError as error:
        one_line(error)
    else:
        assert shape.parameters > 0


RECORD = (
    b"NodeName=n1 Arch=x86_64 CoresPerSocket=1 Gres=gpu:h100:8(S:0-1) State=IDLE+DRAIN ThreadsPerCore=1 "
    b"Partitions=a,b Reason=gpudoctor: FAIL gpu.xid GPU 3: Xid 79 [root@2026-11-21T10:00:00]"
)


@fuzzed("slurm-record")
@given(what=steps)
def test_a_record_of_slurm_is_that_of_the_node_or_none(what: list[Step]) -> None:
    for line in mutated(RECORD, what).decode("utf-8", "replace").splitlines():
        record = parse_node(line)
        if record is None:
            continue
        assert line.startswith(f"NodeName={record.name}") or f" NodeName={record.name}" in line
        # only the reason that gpudoctor itself gave makes it a drain that it may undo
        assert not record.is_ours or (" Reason=gpudoctor" in line and record.out_of_service)
        is_of_hardware(record.reason)
        assert drain_reason(record.reason).isprintable()


TOKEN = "correct horse battery"
REQUESTS = (
    b"GET /metrics HTTP/1.1\r\nHost: node1:9460\r\nAccept: application/openmetrics-text\r\n\r\n",
    b"GET /report HTTP/1.1\r\nHost: node1\r\nAuthorization: Bearer another token\r\n\r\n",
    b"POST /report HTTP/1.1\r\nHost: node1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
    b"HEAD /healthz HTTP/1.0\r\n\r\n",
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The agent's answers, which want a token, in a thread of this process."""
    status = NodeStatus("unknown", why_not="there is no report yet")
    metrics = AgentMetrics(lambda: ScrapeFigures(status, 600.0, {"report": 0}, True, True))
    answers = AgentAnswers(HttpAccess(TOKEN, "0.0.0.0"), metrics, lambda: status, "")
    ready, ports = threading.Event(), list[int]()
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(over.set))
        runner = answers.runner()
        await runner.setup()
        async with await loop.create_server(present(runner.server), "127.0.0.1", 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            ready.set()
            await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield ports[0]
    ends[0]()
    thread.join(60)


@fuzzed("http")
@given(seed=st.sampled_from(REQUESTS), what=steps)
def test_a_request_without_the_token_learns_nothing(port: int, seed: bytes, what: list[Step]) -> None:
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        try:
            client.sendall(mutated(seed, what))
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(1 << 16):
                answer += piece
        except ConnectionError:
            return
    for code in re.findall(rb"^HTTP/1\.[01] (\d+)", answer, re.MULTILINE):
        assert code in (b"400", b"401", b"403", b"405", b"503"), answer
    assert b"gpudoctor_" not in answer
    assert b"no report yet" not in answer


def test_the_path_of_an_example_is_a_log(tmp_path: Path) -> None:
    """So that the seeds are what the tests above think they are."""
    answers = [build.diagnose(gather(find_sources([str(log_of(name))])[0])) for name in EXAMPLE_JOBS]
    assert [answer.cause is None for answer in answers] == [name == "healthy" for name in EXAMPLE_JOBS]
    for data in DUMPS:
        assert len(read_dump(data, "nccl_trace_rank_1").entries) == 4
    (tmp_path / "config.json").write_bytes(CONFIGS[0])
    assert shape_of_config(tmp_path).parameters > 10**8
