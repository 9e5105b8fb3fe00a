"""What the finding pane says of a check."""

from __future__ import annotations

import msgspec
from textual.app import App, ComposeResult

from gpudoctor.checks.core.finding import Status
from gpudoctor.report.model import Report
from gpudoctor.tui.panes.finding_text import FindingPane, check_of, finding_content, seen
from gpudoctor.tui.panes.pane import PageWanted
from gpudoctor.tui.state import FinishedRun, State
from tests.tui.checks_app import report_of
from tests.tui.screen import press, screen_text

NARROW = report_of("hgx-h100-8", "pcie-width-x8@5")
HEALTHY = report_of()


def text(report: Report | None, check_id: str, gpu: int | None = None, width: int = 100, **state: object) -> str:
    return finding_content(State(report=report, **state), check_id, gpu, width).plain  # type: ignore[arg-type]


def run(report: Report | None, at_s: float = 0.0) -> FinishedRun:
    return FinishedRun(at_s, (), "quick", report, None if report else "it failed")


def test_a_failure_is_told_with_all_that_is_known_of_it() -> None:
    words = text(NARROW, "pcie.link-width")
    lines = words.splitlines()
    assert lines[0].startswith("FAIL pcie.link-width on GPU 5 (0000:")
    labels = [line.split()[0] for line in lines[1:] if line[:1].isalpha()]
    assert labels[:5] == ["found", "expected", "likely", "do", "evidence"]
    assert "PCIe Gen5 x8" in words
    assert "current_link_width = 8" in words
    assert all(len(line) <= 100 for line in lines)


def test_the_gpus_that_pass_share_a_line_below() -> None:
    last = text(NARROW, "pcie.link-width").splitlines()[-1]
    assert last.startswith("PASS")
    assert "GPU 0-4, 6-7: PCIe Gen5 x16" in last


def test_the_chosen_gpu_comes_first() -> None:
    two = report_of("hgx-h100-8", "pcie-width-x8@5", "pcie-width-x8@2")
    heads = [line for line in text(two, "pcie.link-width", 5).splitlines() if line.startswith("FAIL")]
    assert ["GPU 5" in head for head in heads] == [True, False]
    assert "GPU 2" in text(two, "pcie.link-width", 2).splitlines()[0]


def test_what_a_fault_explains_and_what_explains_a_finding() -> None:
    lost = report_of("hgx-h100-8", "gpu-lost@2")
    assert "explains  " in text(lost, "gpu.lost")
    effect = next(check.id for check in lost.checks if any(f.explained_by == "gpu.lost" for f in check.findings))
    assert "explained by gpu.lost" in text(lost, effect)


def test_a_skip_says_why() -> None:
    assert "runs at level standard; asked for quick" in text(NARROW, "collective.correct")
    assert "skip" in text(NARROW, "collective.correct")


def test_a_check_that_was_not_judged_is_not_called_fine() -> None:
    assert text(None, "pcie.link-width") == "pcie.link-width: not judged yet"
    assert text(report_of(words=("host",)), "pcie.link-width") == "pcie.link-width: not judged yet"


def test_first_seen_counts_runs_in_a_row() -> None:
    [failed] = [f for f in check_of(NARROW, "pcie.link-width").findings if f.status is Status.FAIL]  # type: ignore[union-attr]
    other = report_of(words=("host",))
    runs = [
        run(NARROW, 1.0),
        run(report_of(), 2.0),
        run(NARROW, 3.0),
        run(None, 4.0),
        run(other, 5.0),
        run(NARROW, 6.0),
    ]
    assert seen(runs, "pcie.link-width", failed) == (3.0, 2)
    assert seen([run(other, 1.0)], "pcie.link-width", failed) is None
    assert "2 runs in a row" in text(NARROW, "pcie.link-width", runs=runs)
    assert "new in the last run" in text(NARROW, "pcie.link-width", runs=runs[1:3])
    assert "first seen" not in text(NARROW, "pcie.link-width", runs=runs[:1])


async def test_labels_are_dimmer_than_what_they_say() -> None:
    def brightness(app: PaneApp, words: str) -> int:
        segments = (segment for strip in app.screen._compositor.render_strips() for segment in strip)
        style = next(segment.style for segment in segments if segment.text.startswith(words))
        assert style is not None
        assert style.color is not None
        return sum(style.color.get_truecolor())

    app = PaneApp()
    async with app.run_test(size=(60, 8)) as pilot:
        app.query_one(FindingPane).show_finding(State(report=NARROW), "pcie.link-width", 5)
        await pilot.pause()
        assert brightness(app, "found") < brightness(app, "PCIe Gen5 x8")


def test_hostile_words_are_neither_markup_nor_escapes() -> None:
    [check] = [check for check in NARROW.checks if check.id == "pcie.link-width"]
    hostile = msgspec.structs.replace(check.findings[5], likely="[bold]\x1b[2Jgone[/]")
    findings = (*check.findings[:5], hostile)
    report = msgspec.structs.replace(NARROW, checks=(msgspec.structs.replace(check, findings=findings),))
    assert "[bold]\\x1b[2Jgone[/]" in text(report, "pcie.link-width")


class PaneApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.pages: list[str] = []

    def compose(self) -> ComposeResult:
        yield FindingPane()

    def on_page_wanted(self, message: PageWanted) -> None:
        self.pages.append(message.check_id)


async def test_the_pane_scrolls_wraps_anew_and_asks_for_the_page() -> None:
    app = PaneApp()
    async with app.run_test(size=(60, 8)) as pilot:
        pane = app.query_one(FindingPane)
        pane.show_finding(State(report=NARROW), "pcie.link-width", 5)
        await pilot.pause()
        assert "FAIL pcie.link-width on GPU 5" in screen_text(app)
        pane.focus()
        await press(pilot, "end")
        assert "GPU 0-4, 6-7" in screen_text(app)
        await pilot.press("e", "enter")
        assert app.pages == ["pcie.link-width"] * 2
        pane.show_finding(State(report=NARROW), "gpu.ecc", None)
        await pilot.pause()
        assert pane.scroll_offset.y == 0
        assert "gpu.ecc" in screen_text(app)
        # on a narrow screen the part at fault is wrapped, not cut
        await pilot.resize_terminal(30, 8)
        pane.show_finding(State(report=NARROW), "pcie.link-width", 5)
        await pilot.pause()
        assert "on GPU 5" in screen_text(app)
        pane.show_finding(State(report=HEALTHY), None)
        await pilot.pause()
        assert "PASS  nothing wrong in the" in screen_text(app)
