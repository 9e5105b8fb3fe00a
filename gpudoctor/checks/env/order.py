"""The env.* checks, in the order a report shows them."""

from __future__ import annotations
