"""`gpudoctor plan --try` on real CPU ranks: what the formulas predict is what the tensors take."""

from __future__ import annotations

import sys
from typing import Any

import jsonschema
import pytest

from gpudoctor.facts.model.measurements import Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing
from gpudoctor.plan import verification
from gpudoctor.probes.runner.launch import OnMessage
from gpudoctor.probes.runner.messages import UnusableTorch
from tests.cli.conftest import Gpudoctor
from tests.needs import needs
from tests.plan.conftest import refused

pytestmark = pytest.mark.usefixtures("forked_starters")


@pytest.fixture(autouse=True)
def _short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of CPU ranks, whose time no test judges, are not timed again and again."""
    monkeypatch.setattr(verification, "STEPS", 1)


CPU = ("--node", "cpu-only", "--try", "--backend", "gloo")

with_torch = needs("torch")


def tried(gpudoctor: Gpudoctor, *argv: str) -> Any:
    outcome = gpudoctor("plan", *argv, "--json")
    assert outcome.code == 0, outcome.err or outcome.json["trial"]["error"]
    jsonschema.validate(outcome.json, gpudoctor("schema", "plan").json)
    return outcome.json


@pytest.mark.wide(but=["ddp"])
@with_torch
@pytest.mark.parametrize(
    ("argv", "strategy"),
    [
        (("350m", *CPU, "--ranks", "2"), "DDP"),
        (("8b", "--node", "hgx-h100-8", "--try", "--backend", "gloo"), "FSDP (ZeRO-3)"),
        (("350m", *CPU, "--ranks", "2", "--tensor", "2"), "Tensor parallel: tensor 2"),
        (("350m", *CPU, "--ranks", "2", "--pipeline", "2"), "Pipeline (1F1B): pipeline 2"),
        (
            ("405b", "--node", "hgx-h100-8", "--nodes", "16", "--try", "--backend", "gloo"),
            "3D: tensor 2 x pipeline 2",
        ),
    ],
    ids=["ddp", "fsdp", "tensor", "pipeline", "3d"],
)
def test_memory_is_predicted_within_10_percent_and_the_train_learns(
    argv: tuple[str, ...], strategy: str, gpudoctor: Gpudoctor
) -> None:
    trial = tried(gpudoctor, *argv)["trial"]
    assert trial["strategy"] == strategy
    assert trial["device"] == "cpu"
    assert abs(trial["off"]) <= 0.10, trial
    assert trial["off"] == pytest.approx(trial["memory_predicted_mib"] / trial["memory_measured_mib"] - 1, abs=1e-3)
    states = {part["part"]: part for part in trial["parts"]}
    for name in ("weights", "optimizer"):
        assert states[name]["predicted_mib"] == pytest.approx(states[name]["measured_mib"], rel=0.03)
    assert trial["losses"][-1] < trial["losses"][0]
    assert trial["step_measured_s"] > 0
    assert trial["step_predicted_s"] > 0


@pytest.mark.wide
@with_torch
def test_the_text_calls_cpu_ranks_cpu_ranks_and_names_both_figures(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("plan", "124m", *CPU, "--ranks", "1")
    assert outcome.code == 0
    words = " ".join(outcome.out.split())
    assert words.startswith("SIMULATED node cpu-only: made up, no plan for a real machine")
    assert "one rank on 1 CPU rank, fp32, adamw: GPT-2's proportions" in words
    assert "MiB of tensors predicted on the fullest rank" in words
    assert "within 10%" in words
    assert "times of CPU ranks do not apply to GPUs" in words
    assert "GPU at a time" not in words


def fake_ranks(monkeypatch: pytest.MonkeyPatch, measured: Measurements) -> None:
    """Ranks that bring nothing but this."""
    monkeypatch.setattr(verification, "run_probes", lambda *args, **options: measured)


@pytest.mark.parametrize(("kind", "code"), [("crash", 1), ("out-of-memory", 1), ("timeout", 3)])
def test_a_trial_that_breaks_is_no_success_and_the_plan_is_still_printed(
    kind: Any, code: int, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ranks(monkeypatch, Measurements(problems=(ProbeProblem("launch", kind, "rank 1 came to grief"),)))
    argv = ("plan", "350m", "--node", "rtx4090-4", "--try", "--backend", "gloo")
    outcome = gpudoctor(*argv, "--json")
    assert outcome.code == code
    assert outcome.json["trial"]["error"] == "rank 1 came to grief"
    assert outcome.json["trial"]["off"] is None
    assert outcome.json["recommended"]["name"] == "ddp"
    text = gpudoctor(*argv).out
    assert "rank 1 came to grief" in text
    assert "within 10%" not in text


def test_ranks_that_bring_nothing_are_no_success(gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ranks(monkeypatch, Measurements())
    outcome = gpudoctor("plan", "350m", *CPU, "--json")
    assert outcome.code == 1
    assert outcome.json["trial"]["error"] == "the ranks sent no figures"


def test_without_torch_one_line_says_how_to_get_it(gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    install = Missing("PyTorch is not installed: pip install 'torch>=2.4' 'numpy>=1.26'")
    fake_ranks(monkeypatch, Measurements(not_run={"torch": install}))
    assert refused(gpudoctor, "350m", *CPU) == f"gpudoctor: error: --try: {install.reason}\n"


def test_a_torch_that_lacks_the_strategy_is_one_line(gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def old_torch(*args: object, on_message: OnMessage, **options: object) -> Measurements:
        on_message(0, UnusableTorch("fully_shard is not in torch 2.4"))
        return Measurements()

    monkeypatch.setattr(verification, "run_probes", old_torch)
    error = refused(gpudoctor, "8b", "--node", "hgx-h100-8", "--try", "--backend", "gloo")
    assert error == "gpudoctor: error: --try: fully_shard is not in torch 2.4\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("350m --node hgx-h100-8 --try", "a simulated node cannot be put under load; --backend gloo measures CPU"),
        ("350m --node hgx-h100-8 --try --backend nccl", "--backend gloo measures CPU ranks here"),
        ("350m --node hgx-h100-8 --backend gloo", "--backend selects the devices of --try: add --try"),
        ("350m --node hgx-h100-8 --ranks 2", "--ranks selects the devices of --try: add --try"),
        ("405b --node cpu-only --try --backend gloo", "plan it for GPUs, and try it here: --node hgx-h100-8"),
        ("350m --node cpu-only --try --backend gloo --ranks 2 --pipeline 30",
         "has 24 layers, and a stage needs one; the nearest that works: --pipeline 2"),
        ("350m --node cpu-only --try --backend gloo --ranks 3 --tensor 2", "does not divide 3 CPU ranks"),
        ("350m --node cpu-only --try --backend gloo --nodes 2", "--nodes plans GPUs, and there are none"),
        ("405b --node hgx-h100-8 --nodes 16 --try --backend gloo --ranks 3", "the nearest that works: --ranks 4"),
        ("350m --node cpu-only --try --backend gloo --optimizer lion", "the nearest that can be tried: --optimizer m"),
        ("350m --node cpu-only --try --backend gloo --optimizer adamw-8bit", "can be tried: --optimizer adamw"),
    ],
)  # fmt: skip
def test_what_cannot_be_tried_is_one_line_with_the_nearest_that_can(
    argv: str, words: str, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "run_probes", lambda *args, **options: sys.exit("no rank may be started"))
    assert words in refused(gpudoctor, *argv.split())


@pytest.mark.parametrize("argv", ["--ranks 0", "--ranks 65", "--ranks two"])
def test_numbers_of_ranks_that_make_no_sense_are_refused(argv: str, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("plan", "350m", *CPU, *argv.split())
    assert outcome.code == 2
    assert "a whole number from 1 to 64" in outcome.err
