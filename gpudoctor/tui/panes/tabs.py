"""The tabs in their order, and the pane of each."""

from __future__ import annotations

from gpudoctor.tui.pane import Pane

TABS = (
    ("overview", "Overview"),
    ("checks", "Checks"),
    ("links", "Links"),
    ("ranks", "Ranks"),
    ("processes", "Processes"),
    ("log", "Log"),
)


def pane_class(tab: str) -> type[Pane]:
    """The class of a tab's pane, by the tab's id."""
    # imported when first turned to: the screen stands sooner
    if tab == "overview":
        from gpudoctor.tui.overview import OverviewPane

        return OverviewPane
    if tab == "checks":
        from gpudoctor.tui.checks_pane import ChecksPane

        return ChecksPane
    if tab == "links":
        from gpudoctor.tui.links_pane import LinksPane

        return LinksPane
    if tab == "ranks":
        from gpudoctor.tui.ranks_pane import RanksPane

        return RanksPane
    if tab == "processes":
        from gpudoctor.tui.processes_pane import ProcessesPane

        return ProcessesPane
    from gpudoctor.tui.log_pane import LogPane

    return LogPane
