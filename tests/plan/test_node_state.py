"""What is wrong with the node, and what was measured on it, is taken into account."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gpudoctor.facts.model.measured_hardware import ComputeRank, Gemm, HostLink
from gpudoctor.facts.model.measurements import BucketStep, Collective, Launch, Measurements, RankInfo, Training
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.simulated.load import load_node, put
from tests.cli.conftest import Gpudoctor
from tests.plan.conftest import planned, refused


def test_a_narrow_link_without_nvlink_costs_communication_time(gpudoctor: Gpudoctor) -> None:
    sound = planned(gpudoctor, "350m --node rtx4090-4")
    broken = planned(gpudoctor, "350m --node rtx4090-4 --fault pcie-width-x8@2")
    [trouble] = broken["troubles"]
    assert (trouble["check"], trouble["gpus"]) == ("pcie.link-width", [2])
    assert trouble["means"].startswith("leave it out (--gpu 0-1,3), or expect ")
    slower, faster = (p["communication"]["communication_s"] for p in (broken, sound))
    assert slower == pytest.approx(2 * faster, rel=0.01)
    assert f"{slower:.3g} s of communication a step instead of {faster:.3g} s" in trouble["means"]


def test_a_narrow_link_beside_nvlink_costs_copies_only(gpudoctor: Gpudoctor) -> None:
    sound = planned(gpudoctor, "8b --node hgx-h100-8")
    broken = planned(gpudoctor, "8b --node hgx-h100-8 --fault pcie-width-x8@5")
    assert broken["communication"]["communication_s"] == sound["communication"]["communication_s"]
    [trouble] = broken["troubles"]
    assert "leave it out (--gpu 0-4,6-7), or expect copies from RAM of 31.5 GB/s instead of 63" in trouble["means"]


def test_what_the_configuration_says_for_this_host_alone_counts(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    (tmp_path / "node.json").write_bytes(to_json(put(load_node("rtx4090-4"), "host.hostname", "gpu2.lab")))
    accepted = "suppress: [{check: pcie.link-width, gpu: 2, reason: ticket 12, until: 2099-01-01}]"
    for hosts, named in (("gpu[1-4]", []), ("gpu[5-8]", ["pcie.link-width"])):
        config = tmp_path / "config.yaml"
        config.write_text(f'hosts: [{{hosts: "{hosts}", {accepted}}}]')
        made = planned(gpudoctor, f"350m --node {tmp_path / 'node.json'} --fault pcie-width-x8@2 --config {config}")
        assert [trouble["check"] for trouble in made["troubles"]] == named


def test_the_advice_to_leave_a_gpu_out_can_be_followed(gpudoctor: Gpudoctor) -> None:
    rest = planned(gpudoctor, "350m --node rtx4090-4 --fault pcie-width-x8@2 --gpu 0-1,3")
    assert rest["machine"]["gpus"] == [0, 1, 3]
    assert rest["troubles"] == []


def test_a_key_of_a_newer_configuration_is_left_out_with_a_note(tmp_path: Path, gpudoctor: Gpudoctor) -> None:
    config = tmp_path / "newer.yaml"
    config.write_text("moonlight: 3\n")
    done = gpudoctor("plan", "7b", "--node", "hgx-h100-8", "--config", str(config), "--json")
    assert done.code == 0
    assert any("moonlight: unknown key" in warning for warning in done.json["warnings"])


def test_a_lost_gpu_is_left_out_and_named(gpudoctor: Gpudoctor) -> None:
    made = planned(gpudoctor, "8b --node hgx-h100-8 --fault gpu-lost@2")
    assert made["machine"]["gpus"] == [0, 1, 3, 4, 5, 6, 7]
    [[index, reason]] = made["left_out"]
    assert index == 2
    assert "lost" in reason
    assert made["recommended"]["data"] == 7


def test_a_gpu_that_no_program_may_use_is_left_out(gpudoctor: Gpudoctor) -> None:
    made = planned(gpudoctor, "8b --node hgx-h100-8 --fault compute-mode-prohibited@2")
    assert [index for index, _ in made["left_out"]] == [2]
    assert made["machine"]["gpus_per_node"] == 7


def test_a_fault_of_the_whole_node_is_to_be_mended_first(gpudoctor: Gpudoctor) -> None:
    [trouble] = planned(gpudoctor, "8b --node hgx-h100-8 --fault fabric-not-started")["troubles"]
    assert trouble["means"] == "mend it first: gpudoctor explain nvlink.fabric"


def test_gpus_without_mig_can_be_planned_for_beside_one_with_it(gpudoctor: Gpudoctor) -> None:
    error = refused(gpudoctor, "8b", "--node", "hgx-h100-8", "--fault", "mig-mixed@2")
    assert "or leave GPU 2 out: --gpu 0-1,3-7" in error
    rest = planned(gpudoctor, "8b --node hgx-h100-8 --fault mig-mixed@2 --gpu 0-1,3-7")
    assert rest["machine"]["gpus_per_node"] == 7


def test_a_missing_nvlink_takes_the_profiles_figure_away(gpudoctor: Gpudoctor) -> None:
    assert planned(gpudoctor, "8b --node hgx-h100-8")["machine"]["collective"]["value"] == 480
    broken = planned(gpudoctor, "8b --node hgx-h100-8 --fault nvlink-link-down@3")
    assert broken["machine"]["collective"]["value"] == pytest.approx(17 * 20.6)


def test_a_gpu_beside_a_bridged_pair_has_no_nvlink_for_tensor_parallelism(gpudoctor: Gpudoctor) -> None:
    assert planned(gpudoctor, "8b --node h100-nvl-4")["machine"]["nvlinked"] == 2
    three = planned(gpudoctor, "8b --node h100-nvl-4 --gpu 0-2")
    assert three["machine"]["nvlinked"] == 1
    assert [row["fit"] for row in three["strategies"] if row["name"] == "tensor"] == ["not here"]


def without_topology(folder: Path, name: str) -> Path:
    """A dump without links between GPUs, like nvidia-smi -q alone."""
    node = load_node(name, {})
    gone = Missing("not in this capture")
    gpus = tuple(msgspec.structs.replace(gpu, nvlinks=gone) for gpu in node.gpus)
    path = folder / f"{name}.json"
    path.write_bytes(to_json(msgspec.structs.replace(node, gpus=gpus, pairs=gone)))
    return path


def test_a_kind_of_node_that_always_has_nvswitch_is_taken_to_have_it(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = without_topology(tmp_path, "hgx-h100-8")
    machine = planned(gpudoctor, f"8b --node {path}")["machine"]
    assert (machine["nvlinked"], machine["topology_read"]) == (8, False)
    assert machine["gather"]["value"] == pytest.approx(18 * 20.6)
    words = " ".join(gpudoctor("plan", "8b", "--node", str(path)).out.split())
    assert "NVLink joins all 8 in this kind of node." in words


def test_an_unread_topology_is_not_called_no_nvlink(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    out = gpudoctor("plan", "350m", "--node", str(without_topology(tmp_path, "rtx4090-4"))).out
    assert "What joins them is not known." in out
    assert "No NVLink" not in out


def test_grace_hopper_reaches_ram_over_c2c_and_not_over_its_pcie_stub(gpudoctor: Gpudoctor) -> None:
    host = planned(gpudoctor, "8b --node gh200-1")["machine"]["host"]
    assert host["value"] == 342
    assert "C2C" in host["source"]


def test_data_parallel_ranks_of_a_pipeline_stay_inside_the_node(gpudoctor: Gpudoctor) -> None:
    made = planned(gpudoctor, "13b --node rtx4090-4 --nodes 8")
    links = {row["what"].partition(":")[0]: row["link"] for row in made["communication"]["traffic"]}
    assert links == {"gradients": "node", "new weights": "node", "activations to the next stage": "network"}


def test_gathering_gets_nothing_from_sums_in_the_switch(gpudoctor: Gpudoctor) -> None:
    machine = planned(gpudoctor, "8b --node hgx-h100-8")["machine"]
    assert machine["gather"]["value"] == pytest.approx(18 * 20.6)
    without = planned(gpudoctor, "8b --node rtx4090-8")["machine"]
    assert without["gather"] == without["collective"]


def test_a_gpu_with_memory_errors_is_to_be_left_out(gpudoctor: Gpudoctor) -> None:
    [trouble] = planned(gpudoctor, "8b --node hgx-h100-8 --fault ecc-uncorrected@3")["troubles"]
    assert trouble["means"] == "leave it out (--gpu 0-2,4-7): GPU 3 may fail, or compute what is wrong"


def test_a_setting_that_harms_is_named(gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    [trouble] = planned(gpudoctor, "8b --node hgx-h100-8")["troubles"]
    assert trouble["check"] == "env.nccl"
    assert "NCCL_P2P_DISABLE=1" in trouble["found"]


def test_programs_on_all_gpus_are_one_line(gpudoctor: Gpudoctor) -> None:
    in_use = [t for t in planned(gpudoctor, "8b --node lifetime-counters")["troubles"] if t["check"] == "gpu.in-use"]
    assert [t["gpus"] for t in in_use] == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_a_healthy_node_has_no_trouble(gpudoctor: Gpudoctor) -> None:
    for name in ("hgx-h100-8", "dgx-a100-8", "rtx4090-4", "h100-nvl-4", "gb200-tray-4"):
        assert planned(gpudoctor, f"350m --node {name}")["troubles"] == [], name


def measured(gpudoctor: Gpudoctor, folder: Path, backend: str) -> Path:
    """A report of hgx-h100-8 with measurements as its ranks would give them."""
    report = gpudoctor("check", "--node", "hgx-h100-8", "--level", "quick", "--json", "--include-facts").json
    device = "cuda" if backend == "nccl" else "cpu"
    ranks = tuple(RankInfo(r, device, r if device == "cuda" else None) for r in range(8))  # type: ignore[arg-type]
    done = Measurements(
        launch=Launch(backend, 8, ranks),  # type: ignore[arg-type]
        collectives=tuple(
            Collective(op, mib * 2**20, "float32", 20, 1000.0, 1.0, gb / 1.75, gb)
            for op, mib, gb in (
                ("all_reduce", 16, 200.0),
                ("all_reduce", 1024, 455.0),
                ("all_gather", 1024, 360.0),
                ("reduce_scatter", 1024, 351.0),
            )
        ),
        host_links=tuple(HostLink(r, 2**28, 52.0, 51.0, 44.0 - r, 43.0) for r in range(8)),
        compute=tuple(ComputeRank(r, (Gemm("bf16", 8192, 700.0 - r, 1.0),)) for r in range(8)),
        training=Training(
            device, 8, 50, 8, 10**7, 4 * 10**7, (), buckets=(BucketStep(25, 9.0), BucketStep(100, 8.0)),  # type: ignore[arg-type]
        ),
    )  # fmt: skip
    report["measurements"] = msgspec.to_builtins(done)
    path = folder / "report.json"
    path.write_text(json.dumps(report))
    return path


def test_what_was_measured_on_gpus_is_used(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = measured(gpudoctor, tmp_path, "nccl")
    made = planned(gpudoctor, f"350m --node {path}")
    collective = made["machine"]["collective"]
    assert (collective["value"], collective["measured"]) == (455.0, True)
    assert made["machine"]["gather"]["value"] == 351.0
    assert made["machine"]["host"]["value"] == 37.0
    assert made["communication"]["compute"]["value"] == 693.0
    assert made["bucket"]["value"] == "100"
    assert "measured" in made["bucket"]["why"]


def test_what_was_measured_on_cpu_ranks_is_not(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = planned(gpudoctor, f"350m --node {measured(gpudoctor, tmp_path, 'gloo')}")
    assert made["machine"]["collective"]["value"] == 480
    assert not made["machine"]["collective"]["measured"]
    assert made["communication"]["compute"]["value"] == 794.5
    assert made["bucket"]["value"] == "50"


def test_what_the_last_check_measured_counts_beside_what_the_node_shows_now(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    path = measured(gpudoctor, tmp_path, "nccl")
    report = json.loads(path.read_text())
    del report["facts"]  # they are read anew
    report["measurements"]["compute"][3]["gemms"][0]["tflops"] = 350.0
    path.write_text(json.dumps(report))
    made = planned(gpudoctor, f"8b --node hgx-h100-8 --fault pcie-width-x8@5 --report {path}")
    assert made["machine"]["collective"]["value"] == 455.0
    found = {trouble["check"]: trouble for trouble in made["troubles"]}
    assert found["pcie.link-width"]["gpus"] == [5]
    assert found["compute.gemm"]["gpus"] == [3]
    assert found["compute.gemm"]["means"].startswith("leave it out (--gpu 0-2,4-7), or expect every step to wait")


def test_a_report_without_gpus_measured_is_said_to_count_for_nothing(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = measured(gpudoctor, tmp_path, "gloo")
    made = planned(gpudoctor, f"350m --node hgx-h100-8 --report {path}")
    assert not made["machine"]["collective"]["measured"]
    assert f"{path} holds no measurements of GPUs: nothing of it counts here" in made["warnings"]


@pytest.mark.parametrize("figure", [0.0, -5.0])
def test_a_measured_rate_that_is_none_gives_no_time(figure: float, gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = measured(gpudoctor, tmp_path, "nccl")
    report = json.loads(path.read_text())
    for collective in report["measurements"]["collectives"]:
        collective["busbw_gb_s"] = figure
    report["measurements"]["compute"][3]["gemms"][0]["tflops"] = figure
    report["measurements"]["host_links"][5].update(h2d_alone_gb_s=figure, h2d_together_gb_s=figure)
    path.write_text(json.dumps(report))
    for model in ("350m", "8b"):
        made = planned(gpudoctor, f"{model} --node hgx-h100-8 --report {path}")
        step = made["communication"]
        assert (step["communication_s"], step["compute_s"], step["efficiency_hidden"]) == (None, None, None)
        assert step["compute"]["source"].endswith(f"{figure:g}: no rate")
        assert made["machine"]["host"]["value"] is None


def test_slow_copies_that_were_measured_are_named_with_their_speed(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = measured(gpudoctor, tmp_path, "nccl")
    report = json.loads(path.read_text())
    report["measurements"]["host_links"][5].update(h2d_alone_gb_s=6.0, h2d_together_gb_s=6.0)
    path.write_text(json.dumps(report))
    troubles = planned(gpudoctor, f"8b --node hgx-h100-8 --report {path}")["troubles"]
    [slow] = [trouble for trouble in troubles if trouble["check"] == "link.host"]
    assert slow["gpus"] == [5]
    assert slow["means"] == "leave it out (--gpu 0-4,6-7), or expect copies from RAM of 6 GB/s"


def test_no_sound_figure_is_promised_for_links_that_are_not(gpudoctor: Gpudoctor) -> None:
    slow = planned(gpudoctor, "8b --node hgx-h100-8 --fault nvlink-slow@1")["troubles"][0]["means"]
    assert "expect collectives of at most 480 GB/s" in slow
    upstream = planned(gpudoctor, "8b --node hgx-h100-8 --fault pcie-upstream-downgraded@7")["troubles"][0]["means"]
    assert upstream.endswith("or expect slower copies between it and the host")
    fabric = planned(gpudoctor, "8b --node hgx-h100-8 --fault fabric-no-resources@1")["troubles"][0]["means"]
    assert "GB/s" not in fabric
