"""The collector process's messages, and what can be seen of it when it sends none."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpudoctor.facts.nvml.channel import SIZE_BYTES, CollectorMessage, CollectorOrder, SharedCallTrace
from gpudoctor.facts.nvml.collector_child import serve
from gpudoctor.process.pipes import anonymous_file
from gpudoctor.testing.fake_nvml import Script, ScriptedFault, write_script
from tests.facts.nvml_nodes import make_node, make_root
from tests.narrowed import present


def test_a_breadcrumb_tells_the_call_the_gpu_and_the_thread_until_the_call_returns() -> None:
    memory = anonymous_file(SIZE_BYTES)
    writer, reader = SharedCallTrace(memory), SharedCallTrace(memory)
    os.close(memory)
    assert reader.read() == ((), 0)
    first, third = writer.slot(0), writer.slot(3)
    assert reader.read() == ((), 2)
    third.enter("nvmlDeviceGetName", 2)
    first.enter("nvmlInit", None)
    (init, name), between = reader.read()
    assert (init.slot, init.call, init.gpu) == (0, "nvmlInit", None)
    assert (name.slot, name.call, name.gpu) == (3, "nvmlDeviceGetName", 2)
    assert name.thread == threading.get_ident()
    assert 0 < name.started_s <= init.started_s
    assert between == 0
    third.leave()
    first.finish()
    assert reader.read() == ((), 1)
    writer.close()
    reader.close()


@pytest.fixture
def trace() -> Iterator[SharedCallTrace]:
    memory = anonymous_file(SIZE_BYTES)
    assert os.fstat(memory).st_size == SIZE_BYTES
    trace = SharedCallTrace(memory)
    os.close(memory)
    yield trace
    trace.close()


def test_a_long_name_does_not_reach_into_the_next_slot(trace: SharedCallTrace) -> None:
    trace.slot(1).enter("nvmlInit", 0)
    trace.slot(0).enter("x" * 500, 7)
    (long, short), _ = trace.read()
    assert set(long.call) == {"x"}
    assert (short.call, short.gpu) == ("nvmlInit", 0)


def test_more_gpus_than_slots_do_not_leave_the_memory(trace: SharedCallTrace) -> None:
    trace.slot(100_000).enter("nvmlInit", 99_999)
    assert len(trace.read()[0]) == 1


def test_the_collector_says_every_fact_and_then_the_end(tmp_path: Path) -> None:
    root, node = make_root(tmp_path / "root"), make_node(2)
    spec = write_script(tmp_path / "script.json", Script(node, (ScriptedFault("*GetHandleByIndex", gpu=1, code=16),)))
    read_end, write_end = os.pipe()
    memory = anonymous_file(SIZE_BYTES)
    said: list[CollectorMessage] = []

    def listen() -> None:
        with os.fdopen(read_end, "rb") as pipe:
            said.extend(msgspec.json.decode(line, type=CollectorMessage) for line in pipe)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    serve(CollectorOrder(out=write_end, trace=memory, nvml=spec, parent_pid=os.getpid(), root=str(root)))
    os.close(write_end)
    os.close(memory)
    listener.join()
    assert [message.gpu for message in said if message.done] == [node.gpus[0]]
    assert [message.handle_error for message in said if message.handle_error] == [(1, "GPU requires reset (16)")]
    last = said[-1]
    assert [message.end for message in said].count(True) == 1
    assert last.end
    assert (present(last.driver).init_code, present(last.driver).device_count) == (0, 2)
