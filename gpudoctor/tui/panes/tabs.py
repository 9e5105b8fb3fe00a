"""The tabs in their order, and the pane of each."""

from __future__ import annotations

from gpudoctor.tui.panes.pane import Pane

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
        from gpudoctor.tui.panes.overview import OverviewPane

        return OverviewPane
    if tab == "checks":
        from gpudoctor.tui.panes.checks import ChecksPane

        return ChecksPane
    if tab == "links":
        from gpudoctor.tui.panes.links import LinksPane

        return LinksPane
    if tab == "ranks":
        from gpudoctor.tui.panes.ranks import RanksPane

        return RanksPane
    if tab == "processes":
        from gpudoctor.tui.panes.processes import ProcessesPane

        return ProcessesPane
    from gpudoctor.tui.panes.log import LogPane

    return LogPane
