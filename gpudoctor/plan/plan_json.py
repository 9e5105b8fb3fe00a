"""The plan as JSON: one document, keys as in `plan.py`."""

from __future__ import annotations

from gpudoctor.json_text import json_line
from gpudoctor.plan.plan import Plan


def render_json(made: Plan) -> str:
    """One line of JSON, ending in a newline."""
    return json_line(made)
