"""The report as one self-contained HTML page that can be mailed."""

from __future__ import annotations

from gpudoctor.report.html.page import render_html

__all__ = ["render_html"]
