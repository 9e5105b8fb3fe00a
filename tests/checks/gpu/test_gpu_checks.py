"""The checks of `driver.*` and `gpu.*` that the design promises."""

from __future__ import annotations

from gpudoctor.checks.core.registry import registry

MINE = [c for c in registry() if c.domain in ("driver", "gpu")]


def test_every_check_of_the_design_is_there() -> None:
    assert {c.id for c in MINE} == {
        "driver.loaded",
        "driver.version-match",
        "driver.responsive",
        "driver.fabric-manager",
        "gpu.count",
        "gpu.identical",
        "gpu.lost",
        "gpu.ecc",
        "gpu.memory-repair",
        "gpu.inforom",
        "gpu.xid",
        "gpu.throttle",
        "gpu.temperature",
        "gpu.power-limit",
        "gpu.clocks",
        "gpu.settings",
        "gpu.in-use",
    }
    assert {c.level for c in MINE} == {"quick"}
