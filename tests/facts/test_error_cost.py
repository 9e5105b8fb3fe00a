"""Every driver call that our reader makes, answered by every code once, on one GPU of a healthy node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import pynvml
import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.codes import cost_of
from gpudoctor.facts.nvml.read_node import read_nvml
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from gpudoctor.testing.fake_nvml import FakeNvml, ScriptedFault
from tests.checks.test_missing_leaves import ESSENTIAL
from tests.facts.nvml_nodes import Heard, make_root, of_field, with_paths
from tests.narrowed import present

# those that may condemn a GPU, or are its loss; of the others each costs one value
CODES = (15, 16, 999, 3, 4, 13, 18, 21, 25, 27)
ALL = pytest.mark.parametrize("all_codes", [False, pytest.param(True, marks=pytest.mark.wide)], ids=["one code", "all"])
STRUCK = 1
T = TypeVar("T")
HANDLE = "nvmlDeviceGetHandleByIndex"
# of two GPUs: it is unknown which of them the answer is about
OF_PAIRS = ("nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus")
CORE = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetUtilizationRates",
)


class Once:
    """The fake driver, one answer of which is an error: the `turn`-th of this function on the struck GPU."""

    def __init__(self, nvml: FakeNvml, call: str = "", turn: int = 0, code: int = 0) -> None:
        self.nvml, self.call, self.turn, self.code = nvml, call, turn, code
        self.seen: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.nvml, name)
        if not name.startswith("nvmlDevice"):
            return real

        def asked(*args: Any) -> Any:
            if args and STRUCK in (args[0] if name == HANDLE else None, getattr(args[0], "index", None)):
                self.seen[name] += 1
                if (name, self.seen[name]) == (self.call, self.turn):
                    raise pynvml.NVMLError(self.code)
            return real(*args)

        return asked


@cache
def whole() -> Node:
    return load_node("h100-nvl-4", {})


@cache
def bridged() -> Node:
    """Two of the four GPUs, joined by their bridge: enough to read, and half as dear."""
    node = whole()
    pairs = tuple(pair for pair in present(node.pairs) if (pair.a, pair.b) == (0, 1))
    return replace(node, gpus=node.gpus[:2], pairs=pairs, driver=replace(node.driver, device_count=2))


@cache
def others(root: Path) -> tuple[Gpu, ...]:
    """The last two GPUs as the same reader shows them: what only one reader shows would be a gap of the others."""
    heard = Heard()
    read_nvml(heard.take, FakeNvml(whole()), root)
    return tuple(gpu for index, gpu in sorted(with_paths(heard.gpus.values(), whole()).items()) if index >= 2)


def read(root: Path, nvml: Any) -> Node:
    """The four GPUs, of which the first two were read through this driver."""
    heard, node = Heard(), whole()
    assert isinstance(node.pairs, tuple)
    driver = read_nvml(heard.take, nvml, root)
    told = with_paths(heard.gpus.values(), node)
    gpus = (*(told[index] for index in sorted(told)), *others(root))
    shown = {gpu.index for gpu in gpus}
    pairs = tuple(heard.pairs_by_name.get((p.a, p.b), p) for p in node.pairs if {p.a, p.b} <= shown)
    errors = tuple(f"index {index}: {words}" for index, words in sorted(heard.handle_errors.items()))
    return replace(node, driver=replace(driver, device_count=4, handle_errors=errors), gpus=gpus, pairs=pairs)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("root"), str(whole().driver.library_version))


@pytest.fixture(scope="module")
def healthy(root: Path) -> Report:
    report = judge(read(root, FakeNvml(bridged())))
    assert report.verdict == "pass"
    return report


def calls(root: Path) -> list[tuple[str, int]]:
    """(function, which time) of every call on the struck GPU, as a run that records them makes them."""
    recorder = Once(FakeNvml(bridged()))
    read(root, recorder)
    assert {HANDLE, "nvmlDeviceGetFieldValues", *CORE} <= recorder.seen.keys()
    return [(name, turn + 1) for name, times in sorted(recorder.seen.items()) for turn in range(times)]


def fields(root: Path) -> list[int]:
    """Every field id that is queried on the struck GPU."""
    asked: set[int] = set()

    class Recorder(Once):
        def __getattr__(self, name: str) -> Any:
            real = getattr(self.nvml, name)
            if name != "nvmlDeviceGetFieldValues":
                return real

            def values(handle: Any, wanted: list[tuple[int, int]]) -> Any:
                asked.update(field for field, _ in wanted)
                return real(handle, wanted)

            return values

    read(root, Recorder(FakeNvml(bridged())))
    return sorted(asked)


def struck_by(code: int, asked: list[T], *, all_codes: bool) -> list[T]:
    """Each of them by one code, or by all."""
    return asked if all_codes else asked[CODES.index(code) :: len(CODES)]


def statuses(report: Report, gpu: int) -> set[tuple[str, Status]]:
    return {(c.id, f.status) for c in report.checks for f in c.findings if f.subject.gpu == gpu}


def passed_unread(node: Node, report: Report) -> Iterator[str]:
    """The checks that pass the struck GPU without their fact, although reading it failed."""
    struck = next((gpu for gpu in node.gpus if gpu.index == STRUCK), None)
    for leaf, check in ESSENTIAL.items():
        if struck is None or leaf.startswith(("driver", "environment", "host", "kernel", "network", "pairs", "pci.")):
            continue
        value = attrgetter(leaf)(struck)
        if isinstance(value, Missing) and value.kind == "failed" and (check, Status.PASS) in statuses(report, STRUCK):
            yield check


def problems(healthy: Report, node: Node, condemned: bool) -> dict[str, Any]:
    """The parts of the rule that do not hold; empty if all of it holds."""
    report = judge(node)
    others = {gpu: statuses(report, gpu) ^ statuses(healthy, gpu) for gpu in range(4) if gpu != STRUCK}
    now, before = statuses(report, STRUCK), statuses(healthy, STRUCK)
    failed = {(c.id, f.subject.gpu) for c in report.checks for f in c.findings if f.status is Status.FAIL}
    found = {
        "another GPU": {gpu: changes for gpu, changes in others.items() if changes},
        "a pass more": {each for each in now - before if each[1] is Status.PASS},
        "passed unread": set(passed_unread(node, report)),
        "failed": failed ^ ({("gpu.lost", STRUCK)} if condemned else set()),
        "crashed": {f.reason for c in report.checks for f in c.findings if "itself failed" in (f.reason or "")},
    }
    return {words: wrong for words, wrong in found.items() if wrong}


@ALL
@pytest.mark.parametrize("code", CODES)
def test_one_answer_of_a_call_costs_what_the_rule_says(code: int, all_codes: bool, root: Path, healthy: Report) -> None:
    wrong = {}
    for call, turn in struck_by(code, calls(root), all_codes=all_codes):
        node = read(root, Once(FakeNvml(bridged()), call, turn, code))
        condemned = (code in (15, 16) and call not in OF_PAIRS) or (code == 999 and call == HANDLE)
        if found := problems(healthy, node, condemned):
            wrong[call, turn] = found
    assert wrong == {}


@ALL
@pytest.mark.parametrize("code", CODES)
def test_one_field_of_many_costs_what_the_rule_says(code: int, all_codes: bool, root: Path, healthy: Report) -> None:
    wrong = {}
    for field in struck_by(code, fields(root), all_codes=all_codes):
        answers = FakeNvml(bridged(), of_field(field, STRUCK, code=code))
        if found := problems(healthy, read(root, answers), condemned=code in (15, 16)):
            wrong[field] = found
    assert wrong == {}


def test_unknown_errors_to_all_core_questions_condemn_the_gpu_and_no_other(root: Path, healthy: Report) -> None:
    faults = [ScriptedFault(call, gpu=STRUCK, code=999) for call in CORE]
    assert problems(healthy, read(root, FakeNvml(bridged(), faults)), condemned=True) == {}
    for spared in CORE:
        left = [fault for fault in faults if fault.call != spared]
        assert problems(healthy, read(root, FakeNvml(bridged(), left)), condemned=False) == {}


@pytest.mark.parametrize(
    ("code", "call", "cost"),
    [
        (999, "nvmlInit", "node"),
        (18, "nvmlInit", "node"),
        (15, "nvmlDeviceGetFanSpeed", "gpu"),
        (16, "nvidia-smi -q: fan_speed", "gpu"),
        (999, HANDLE, "gpu"),
        (999, "nvidia-smi: device handle", "gpu"),
        (8, HANDLE, "gpu"),
        (27, HANDLE, "value"),
        (999, "nvmlDeviceGetUtilizationRates", "value"),
        (999, "nvidia-smi -q: addressing_mode", "value"),
        (18, "nvmlDeviceGetName", "value"),
    ],
)
def test_what_a_code_costs(code: int, call: str, cost: str) -> None:
    assert cost_of(code, call) == cost
