"""gpu.power-limit: caps below the default or the peers."""

from __future__ import annotations

import pytest

from gpudoctor.profiles.profile import GpuModel, Profile
from tests.checks.gpu_nodes import UNSUPPORTED, eight, h100, node, only, status, text
from tests.narrowed import present


@pytest.mark.parametrize(("limit_w", "expected"), [(700.0, "pass"), (695.0, "pass"), (690.0, "warn"), (750.0, "pass")])
def test_a_cap_below_default_warns_and_never_fails(limit_w: float, expected: str) -> None:
    assert status("gpu.power-limit", node(h100(power__limit_w=limit_w))) == expected


def test_a_cap_says_what_it_costs_and_how_to_undo_it() -> None:
    finding = only("gpu.power-limit", eight(power__limit_w=350.0))
    assert finding.subject.gpu == 5
    assert text(finding) == "capped at 350 W, 50 % below the GPU's own default"
    assert any(step.command and "-pl 700" in step.command for step in finding.advice)


def test_peers_judge_where_the_default_is_not_known() -> None:
    subject = node(
        *(h100(i, power__default_limit_w=UNSUPPORTED, power__limit_w=300.0 if i == 1 else 400.0) for i in range(4))
    )
    finding = only("gpu.power-limit", subject)
    assert finding.subject.gpu == 1
    assert present(finding.expected).source == "majority of the peers"


def test_peers_of_another_model_do_not_judge() -> None:
    small = h100(2, name="NVIDIA L4", power__limit_w=72.0, power__default_limit_w=72.0)
    assert status("gpu.power-limit", node(h100(0), h100(1), small)) == "pass"


def test_neither_default_nor_peers_is_no_pass_unless_the_profile_tells() -> None:
    subject = node(h100(power__default_limit_w=UNSUPPORTED, power__limit_w=350.0))
    assert status("gpu.power-limit", subject) == "skip"
    model = GpuModel("h100", ("h100",), power_limit_w=700.0)
    assert status("gpu.power-limit", subject, profile=Profile("h", "name", gpu=model)) == "warn"
    doubtful = GpuModel("h100", ("h100",), power_limit_w=700.0, uncertain=("power_limit_w",))
    assert status("gpu.power-limit", subject, profile=Profile("h", "name", gpu=doubtful)) == "skip"
