"""The plan as JSON: one document, keys as in `plan.py`."""

from __future__ import annotations

import msgspec

from gpudoctor.plan.plan import Plan


def render_json(made: Plan) -> str:
    """One line of JSON, ending in a newline; the standard library escapes what is not UTF-8."""
    try:
        return msgspec.json.encode(made).decode() + "\n"
    except UnicodeEncodeError:
        import json

        return json.dumps(msgspec.to_builtins(made)) + "\n"
