"""Whatever the input, every parser returns a value or one line for the user, and every check a finding."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpudoctor.api.config import Config, ConfigError, load_config
from gpudoctor.checks.core.cuda_device_list import resolve
from gpudoctor.checks.core.registry import registry
from gpudoctor.errors import UserError
from gpudoctor.facts.captures.source import Loaded, SourceError, load_source
from gpudoctor.facts.kernel_log.lines import kmsg_events
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import from_json, to_json
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.facts.stream.recording import read_stream
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from gpudoctor.report.saved_report import load_report
from gpudoctor.report.text import render_text
from gpudoctor.report.two_reports import differences, joined
from tests.facts.kernel_words import WITH_USERS_WORDS, kmsg, message, names
from tests.fuzz import seeds
from tests.fuzz.mutate import Step, mutated, steps
from tests.fuzz.profile import fuzzed
from tests.narrowed import present

LINKED = seeds.broken_node()


def one_line(error: UserError, start: str = "") -> None:
    """The error a user sees: one line without control characters, starting with the file's name if it has one."""
    said = str(error)
    assert said.isprintable()
    assert said.startswith(start)


def judged(data: bytes) -> Report | None:
    """The report on these bytes; None if they are refused, in one line for the user.

    A check that crashed would hide as `unknown`: here it is an error.
    """
    return judged_from(lambda: load_source("-", stdin=io.BytesIO(data)))


def judged_from(read: Callable[[], Loaded]) -> Report | None:
    try:
        loaded = read()
    except SourceError as error:
        one_line(error)
        return None
    assert from_json(to_json(loaded.node)) == loaded.node
    report = judge(loaded.node, loaded.measurements)
    crashed = [f.reason for c in report.checks for f in c.findings if "the check itself failed" in (f.reason or "")]
    assert crashed == []
    return report


def test_the_seeds_are_read_whole() -> None:
    for seed in (*XML, *SMI_TEXT, *TOPOLOGY, *P2P, *NVLINK, *LSPCI, *PASTES, *LOGS, *BUG_REPORTS, seeds.report_json()):
        assert judged(seed) is not None, seed[:200]
    for seed in (to_json(LINKED), seeds.as_yaml(LINKED), seeds.stream(), seeds.bundle()):
        assert present(judged(seed)).verdict == "fail"


XML = (seeds.dump("smi-q-mig.xml"), *seeds.captured("a10g.xml", "gtx-1070-ti.xml", "qx-l40s.xml"))
SMI_TEXT = (seeds.dump("smi-q-v100-390.txt"), *seeds.captured("smi-q-gtx680.txt", "smi-q-2x-rtx3090.txt"))
HGX = "hgx-h100-dump"
TOPOLOGY = (seeds.topology(LINKED), seeds.dump("topo-m-nics.txt"), *seeds.captured(f"{HGX}/topo-m.txt"))
P2P = (seeds.p2p(LINKED), *seeds.captured(f"{HGX}/topo-p2p-r.txt"))
NVLINK = (
    *(seeds.nvlink(LINKED, option) for option in ("status", "errors", "remote")),
    *seeds.captured(*(f"{HGX}/nvlink-{option}.txt" for option in ("status", "errors", "remote"))),
)
LSPCI = (seeds.dump("lspci-2-gpus.txt"),)
PASTES = (seeds.paste(LINKED), seeds.other_tools())
LOGS = (seeds.kernel_log(), seeds.journal(), seeds.host_tools())
BUG_REPORTS = (seeds.bug_report(),)


def judged_whatever_it_is(parser: str, seeds: tuple[bytes, ...], few: int = 25) -> Callable[..., None]:
    """A test that a report is made of these seeds, however they were changed, or that they are refused."""

    @fuzzed(parser, few)
    @given(seed=st.sampled_from(seeds), what=steps)
    def test(seed: bytes, what: list[Step]) -> None:
        judged(mutated(seed, what))

    return test


test_nvidia_smi_xml = judged_whatever_it_is("xml", XML)
test_nvidia_smi_text = judged_whatever_it_is("smi-text", SMI_TEXT)
test_topology = judged_whatever_it_is("topology", TOPOLOGY)
test_peer_to_peer_matrix = judged_whatever_it_is("p2p", P2P)
test_nvlink = judged_whatever_it_is("nvlink", NVLINK)
test_lspci = judged_whatever_it_is("lspci", LSPCI)
test_pasted_text = judged_whatever_it_is("paste", PASTES)
test_kernel_log = judged_whatever_it_is("kernel-log", LOGS)
test_bug_report = judged_whatever_it_is("bug-report", BUG_REPORTS)
test_facts_as_json = judged_whatever_it_is("facts-json", (to_json(LINKED),))
test_facts_as_yaml = judged_whatever_it_is("facts-yaml", (seeds.as_yaml(LINKED),), few=12)
test_report_as_a_node = judged_whatever_it_is("report", (seeds.report_json(),))


@fuzzed("kernel-names")
@given(form=st.sampled_from(WITH_USERS_WORDS), name=names, other=names, seed=st.sampled_from(LOGS), what=steps)
def test_kernel_log_with_names_that_a_user_chose(
    form: str, name: str, other: str, seed: bytes, what: list[Step]
) -> None:
    record = kmsg(message(form, name, other))
    assert kmsg_events(record) == ()
    judged(mutated(seed + record.encode(), what))


DIRECTORY = {
    "smi.xml": XML[0],
    "smi-q.txt": SMI_TEXT[0],
    "topo-m.txt": TOPOLOGY[0],
    "topo-p2p.txt": P2P[0],
    "nvlink-status.txt": NVLINK[0],
    "nvlink-errors.txt": NVLINK[1],
    "lspci.txt": LSPCI[0],
    "dmesg.txt": LOGS[0],
}


@fuzzed("directory", few=12)
@given(files=st.dictionaries(st.sampled_from(sorted(DIRECTORY)), st.one_of(st.just([]), steps), min_size=1, max_size=4))
def test_directory_of_dumps_that_do_not_belong_together(
    files: dict[str, list[Step]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        for name, what in files.items():
            (Path(folder) / name).write_bytes(mutated(DIRECTORY[name], what))
        judged_from(lambda: load_source(folder))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that each input overwrites."""
    return tmp_path_factory.getbasetemp() / f"fuzzed-{os.getpid()}"


@fuzzed("base-report")
@given(what=steps)
def test_report_as_the_base_that_the_live_view_compares_with(file: Path, what: list[Step]) -> None:
    file.write_bytes(mutated(seeds.report_json(), what))
    try:
        base = load_report(str(file), Report)
    except UserError as error:
        one_line(error)
        return
    differences(base, seeds.report())
    joined(base, seeds.report())
    render_text(base, width=100, color=True, verbose=True)


@fuzzed("watch")
@given(what=steps)
def test_recorded_stream(file: Path, what: list[Step]) -> None:
    data = mutated(seeds.stream(), what)
    judged(data)
    file.write_bytes(data)
    try:
        with closing(read_stream(str(file))) as recording:
            for number in range(recording.count):
                recording.tick(number)
                recording.opening_at(number)
    except SourceError as error:
        one_line(error)


@fuzzed("bundle")
@given(what=steps, packed=st.booleans())
def test_bundle(what: list[Step], packed: bool) -> None:
    judged(mutated(seeds.bundle(), what) if packed else mutated(gzip.decompress(seeds.bundle()), what))


@fuzzed("config")
@given(what=steps)
def test_configuration(file: Path, what: list[Step]) -> None:
    file.write_bytes(mutated(seeds.CONFIG, what))
    try:
        config = load_config(file, {"HOME": str(file.parent / "nobody")}, registry, file.parent / "no-system-file")
    except ConfigError as error:
        one_line(error, str(file))
    else:
        assert isinstance(config, Config)


_MIG = load_node("a100-mig-8", {}).gpus
_MIXED = load_node("workstation-mixed", {}).gpus
_ENTRIES = st.one_of(
    st.integers(-3, 20).map(str),
    st.sampled_from([str(gpu.uuid) for gpu in (*_MIG, *_MIXED)]).flatmap(
        lambda uuid: st.integers(0, len(uuid)).map(lambda length: uuid[:length])
    ),
    st.sampled_from(["", " ", "9" * 5000, "NoDevFiles", "MIG-GPU-x/1/2", "GPU-", "MIG-", "0x1", "+1", "\0", "٣"]),
    st.text(max_size=8),
)


@fuzzed("visible-devices", few=50)
@given(entries=st.lists(_ENTRIES, max_size=12), gpus=st.sampled_from([_MIG, _MIXED, LINKED.gpus, ()]))
@example(entries=["0"] * 60_000, gpus=_MIG)
@example(entries=[str(number) for number in range(60_000)], gpus=_MIG)
def test_cuda_visible_devices(entries: list[str], gpus: tuple[Gpu, ...]) -> None:
    seen = resolve(",".join(entries), gpus)
    assert len(set(seen.visible)) == len(seen.visible) == len(seen.uuids)
    assert all(text.isprintable() for text in (*seen.problems, *seen.notes))
    if seen.unresolved is None:
        assert {*seen.visible, *seen.hidden} == {gpu.index for gpu in gpus}
        assert not {*seen.visible} & {*seen.hidden}
