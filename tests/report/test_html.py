"""The report as a page: what a person reads in it, and that it cannot execute anything."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudoctor.checks.core.finding import PROBLEMS
from gpudoctor.facts.model.measured_hardware import StorageRate, StorageRead
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.report.html import render_html
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from gpudoctor.text.output import printable
from tests.cli.conftest import Gpudoctor
from tests.golden_files import assert_golden
from tests.report.html_report import full_report, run_of
from tests.subprocesses import completed

GOLDEN = Path(__file__).parent.parent / "golden" / "narrow-link.html"
pytestmark = pytest.mark.usefixtures("pinned_checks")
# every attribute that may be in the page; none of them loads or runs anything
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "id", "open", "tabindex", "role", "scope"),
    *("aria-label", "viewbox", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx", "cy", "r", "d", "points"),
    *("text-anchor", "title", "style"),
}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><script>",
    "</title></svg></pre></details>",
    "' onclick='x",
    "<!-- ",
    "]]>",
    "&lt;b&gt; &amp",
    "\x1b[31mred\x1b[0m",
    "\u202egnp.exe",
    "\ud800",
)


class Reader(HTMLParser):
    """Collects the elements, their attributes and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, set[str]] = {}
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.append("comment")

    def handle_decl(self, decl: str) -> None:
        self.tags.append(f"!{decl}")


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def words(report: Report, **options: bool) -> str:
    """The text of the page, each run of blanks as one, without the style sheet."""
    page = re.sub(r"<style>.*?</style>", "", render_html(report, **options), flags=re.DOTALL)
    return " ".join(" ".join(read(page).text).split())


@cache
def full() -> Report:
    return full_report()


def narrow() -> Report:
    node = apply_faults(load_node("rtx4090-4"), ["pcie-width-x4@2"])
    return judge(node, run=run_of(node), include_facts=True)


def test_a_fault_is_told_with_all_that_is_known_of_it() -> None:
    text = words(narrow())
    for said in (
        "FAIL",
        "not fit to train on",
        "SIMULATED",
        "made up, no verdict on a real machine",
        "pcie.link-width",
    ):
        assert said in text
    for label in ("found", "expected", "evidence", "likely", "do"):
        assert f" {label} " in text
    assert "explains gpu.temperature fail: GPU 2" in words(full())
    assert "1 fault" in text


def test_every_check_stands_in_the_page_with_its_status_word() -> None:
    page = render_html(full())
    text = words(full())
    for result in full().checks:
        # a title says what holds if the check passes
        good = "" if result.status in PROBLEMS else f" {result.title}"
        assert f"{result.status.value.upper()} {result.id}{good}" in text
        assert (result.title in text) is bool(good)
    # only what wants to be looked at is unfolded
    folds = re.findall(r'<details class="domain"( open)?><summary><span class="chip (\w+)"', page.replace("\n", ""))
    assert {bool(unfolded) for unfolded, status in folds if status in ("fail", "unknown", "warn")} == {True}
    assert {bool(unfolded) for unfolded, status in folds if status in ("pass", "skip")} == {False}


def test_the_page_is_the_golden_one_and_the_same_report_gives_the_same_bytes() -> None:
    page = render_html(narrow(), raw_facts=False)
    assert page == render_html(narrow(), raw_facts=False)
    assert_golden(page, GOLDEN)


def test_figures_stand_in_charts_and_in_tables() -> None:
    text, page = words(full()), render_html(full())
    assert page.count("<svg") == 1
    assert "Measured on 8 GPUs" in text
    # the straggler is marked in the chart, and its cause named
    assert "◀ FAIL" in page
    assert "rank 2, GPU 2 FAIL: the hardware slows it down" in text
    assert "rank 2, GPU 2 31.00 0.00 0.40 0.50 31.90 90% 1400 6.900 → not finite" in text
    # the heat map has a figure and a sign in each cell
    assert re.search(r'class="heat0">90.0<i> ○</i>', page)
    assert re.search(r'class="heat4">390<i> ●</i>', page)
    assert "GPU 0 – NV18 NV18" in text
    assert "all_reduce of 1 GiB: WRONG on rank 1" in text
    assert "gemm bf16 8192 rank 2, GPU 2 TFLOP/s 700 630 -10.0% 600 705" in text
    assert "WRONG in round 4 (until 90 s): all_reduce wrong on rank 1" in text
    assert "and 6 more" in text
    assert "compute, error, rank 1, gemm: something went wrong" in text
    assert "During train: medians of 20 readings" in text


@pytest.mark.parametrize("alone", [True, False], ids=["no other probe ran", "beside other probes"])
def test_reads_from_storage_are_a_table_of_each_path(alone: bool) -> None:
    rate = StorageRate("sequential", 4, 1 << 20, 2.0, reads=100, seconds=1.0, p50_us=900.0, p99_us=4000.0)
    storage = (StorageRead("/data", rates=(rate,)), StorageRead("/unread"))
    measured = Measurements() if alone else full().measurements
    measured = msgspec.structs.replace(measured, storage=storage)
    text = words(judge(load_node("rtx4090-4"), measured))
    assert "Read from /data, readers together pattern readers a read MB/s p50 p99" in text
    assert "sequential 4 1 MiB 2000 900 us 4.0 ms" in text
    assert "Read from /unread" not in text


def test_cpu_ranks_are_called_cpu_ranks_and_never_gpus() -> None:
    node = load_node("cpu-only")
    measurements = msgspec.structs.replace(
        full().measurements, launch=None, peer_links=(), pairs=(), compute=(), host_links=(), telemetry=(), burn=None
    )
    from tests.checks.measured import launched

    measurements = msgspec.structs.replace(measurements, launch=launched(node, 8))
    text = words(judge(node, measurements, run=run_of(node)))
    assert "Measured on 8 CPU ranks" in text
    assert "rank 2 31.00" in text
    assert "GPU 2" not in text


def test_what_was_not_measured_or_read_has_no_place_and_no_zero() -> None:
    text = words(judge(Node()))
    for title in ("Topology", "Collectives", "Ranks of the DDP train", "Bandwidth", "Burn"):
        assert title not in text
    gpus = msgspec.structs.replace(load_node("hgx-h100-8").gpus[0], memory_total_mib=Missing("no"))
    assert "GPU 0 NVIDIA H100 80GB HBM3 - " in words(judge(Node(gpus=(gpus,)), include_facts=True))


def test_facts_are_there_where_the_report_has_them_and_raw_only_where_asked_for() -> None:
    node = load_node("hgx-h100-8")
    without, tables = words(judge(node)), words(judge(node, include_facts=True), raw_facts=False)
    raw = words(judge(node, include_facts=True))
    assert "0000:3b:00.0" in without
    assert "GPU 0 – NV18" not in without
    assert "GPU 0 – NV18" in tables
    assert "gpudoctor.facts/1" not in tables
    assert '"schema": "gpudoctor.facts/1"' in raw


def test_what_could_not_be_judged_is_a_page_too(gpudoctor: Gpudoctor) -> None:
    done = gpudoctor("check", "--node", "no<such>node", "--format", "html")
    assert done.code == 2
    text = " ".join(" ".join(read(done.out).text).split())
    assert "NOT JUDGED gpudoctor could not do its work" in text
    assert "ERROR no<such>node" in text
    assert "Checks" not in text


def test_the_command_writes_the_page_with_its_tables_of_facts(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    asked = ("check", "--node", "hgx-h100-8", "--fault", "thermal@2", "--level", "quick", "--format", "html")
    done = gpudoctor(*asked, "-o", str(path))
    assert (done.code, done.out) == (1, "")
    text = " ".join(read(path.read_text()).text)
    assert "NV18" in text
    assert '"schema"' not in text
    assert '"schema": "gpudoctor.facts/1"' in " ".join(read(gpudoctor(*asked, "--include-facts").out).text)


def test_what_a_facts_file_lacks_is_one_card_as_it_is_one_block_of_the_text(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    facts = json.loads(gpudoctor("facts", "--node", "hgx-h100-8").out)
    facts["host"] = {"kernel": facts["host"]["kernel"]}
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(facts), encoding="utf-8")
    asked = ("check", "--node", str(path), "--level", "quick")
    page = gpudoctor(*asked, "--format", "html").out
    assert page.count('class="card unknown"') == 1
    text = " ".join(" ".join(read(page).text).split())
    (title,) = re.findall(r"not in this file: what \d+ checks judge", text)
    assert title in gpudoctor(*asked).out
    assert {"host.ram-per-gpu", "host.swap"} <= set(text.split(title)[1].partition("Checks")[0].split())


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    page = render_html(full())
    reader = read(page)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "input", "base", "a"} & set(reader.tags)
    assert set(reader.attributes) <= ATTRIBUTES
    assert "http" not in "".join(re.findall(r"<style>.*?</style>", page, flags=re.DOTALL))
    assert "@import" not in page
    assert "url(" not in page
    assert all(re.fullmatch(r"(width|left):[0-9.]+%", style) for style in reader.attributes["style"])
    [policy] = [value for value in reader.attributes["content"] if value.startswith("default-src")]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert page.index("Content-Security-Policy") < page.index("<title>")


def test_text_places_of_a_report_are_found() -> None:
    # the tests below would prove nothing with a few of them only
    tree = json.loads(msgspec.json.encode(full()))
    assert len([place for _, _, place in texts_in(tree) if place in free_places()]) > 500


@pytest.mark.wide(every=11)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    assert_it_stays_text(text)


@pytest.mark.wide
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(min_size=1, max_size=40).filter(lambda text: text.strip()))
def test_no_text_whatever_adds_an_element(text: str) -> None:
    assert_it_stays_text(text)


def assert_it_stays_text(text: str) -> None:
    # numbered, so that what was different stays different, and is grouped and sorted the same way
    given, plain = (read(render_html(with_texts(word))) for word in (text, "x"))
    assert given.tags == plain.tags
    assert set(given.attributes) == set(plain.attributes)
    for name in ("class", "id", "http-equiv", "open", "tabindex", "role", "scope"):
        assert given.attributes[name] == plain.attributes[name]
    assert printable(text) in "".join(given.text)


def with_texts(text: str) -> Report:
    """The full report, each text that is free replaced by this one."""
    tree = json.loads(msgspec.json.encode(full()))
    for n, (owner, key, place) in enumerate(texts_in(tree)):
        if place in free_places():
            owner[key] = f"a{n:05}{text}"
    return msgspec.convert(tree, Report)


@cache
def free_places() -> set[tuple[str, ...]]:
    """The places of the report whose texts may be any text."""
    tree = json.loads(msgspec.json.encode(full()))
    free = {}
    for owner, key, place in texts_in(tree):
        if place not in free:
            before, owner[key] = owner[key], "any text"
            free[place] = is_report(tree)
            owner[key] = before
    return {place for place, may_be_any in free.items() if may_be_any}


def is_report(tree: Any) -> bool:
    try:
        msgspec.convert(tree, Report)
    except msgspec.ValidationError:
        return False
    return True


def texts_in(owner: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any, tuple[str, ...]]]:
    """What holds a text and under which key or index, and the keys on the way to it."""
    for key, value in list(owner.items()) if isinstance(owner, dict) else enumerate(owner):
        here = (*place, str(key)) if isinstance(owner, dict) else place
        if isinstance(value, str):
            yield owner, key, here
        elif isinstance(value, (dict, list)):
            yield from texts_in(value, here)


def test_odd_figures_of_a_stranger_break_nothing() -> None:
    tree = json.loads(msgspec.json.encode(full().measurements))
    for row, (size, rate) in zip(tree["collectives"], ((0, -1.0), (-5, 1e308), (1, 1e-320)), strict=False):
        row["size_bytes"], row["busbw_gb_s"] = size, rate
    for rank in tree["training"]["ranks"]:
        rank["compute_ms"] = 1e308
    for link in tree["peer_links"]:
        link["gb_s"] = -0.0
    odd = msgspec.structs.replace(full(), measurements=msgspec.convert(tree, Measurements))
    page = render_html(odd)
    assert "nan" not in page
    assert "inf" not in re.sub(r"[a-z]*info?[a-z]*", "", page)


def test_the_page_says_what_to_do_before_the_evidence_and_folds_the_rest() -> None:
    page = render_html(full())
    order = ('class="word"', 'id="do"', 'id="problems"', 'id="ranks"', 'id="checks"', 'id="topology"', 'id="run"')
    assert [page.index(mark) for mark in order] == sorted(page.index(mark) for mark in order)
    assert '<details class="rest" id="topology">' in page
    assert '<code class="command">gpudoctor check collective</code>' in page


def test_only_a_page_imports_the_template_engine() -> None:
    code = "import sys; from gpudoctor.cli.main import main; main(); print(*sys.modules, file=sys.stderr)"
    for form, expected in (("json", False), ("html", True)):
        argv = ("check", "--node", "rtx4090-4", "--level", "quick", "--format", form)
        done = completed([sys.executable, "-c", code, *argv])
        assert ("jinja2" in done.stderr.split()) == expected, done.stderr
