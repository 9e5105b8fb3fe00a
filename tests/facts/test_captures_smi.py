"""nvidia-smi -q, XML and text: old and new names, and the words that mean "no value"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpudoctor.facts.captures import ABSENT
from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT
from gpudoctor.facts.captures.source import SourceError
from gpudoctor.facts.model.gpu import EVENT_REASONS, Gpu
from gpudoctor.facts.model.missing import Missing, known
from tests.facts.loaded_nodes import node_of, pasted
from tests.narrowed import present
from tests.sysfs_tree import kind_of

DUMPS = Path(__file__).parent / "dumps"


REAL = {
    # file: GPUs, name, driver, generation max, width now and max, bus id of the first
    "qx-h100.xml": (8, "NVIDIA H100 80GB HBM3", "580.105.08", 5, 16, 16, "0000:53:00.0"),
    "qx-gb200.xml": (4, "NVIDIA GB200", "580.173.02", 5, 16, 16, "0000:29:00.0"),
    "qx-l40s.xml": (1, "NVIDIA L40S", "595.91.07", 4, 8, 16, "0000:30:00.0"),
    "qx-t4.xml": (1, "Tesla T4", "595.91.07", 3, 8, 16, "0000:00:1e.0"),
    "a10g.xml": (1, "NVIDIA A10G", "515.105.01", 4, 8, 16, "0000:00:1e.0"),
    "rtx-3090-v12.xml": (1, "NVIDIA GeForce RTX 3090", "525.147.05", 4, 16, 16, "0000:00:10.0"),
    "smi-q-8x-rtx4090.txt": (8, "NVIDIA GeForce RTX 4090", "550.127.05", 4, 16, 16, "0000:01:00.0"),
    "smi-q-8x-h100-sxm.txt": (8, "NVIDIA H100 80GB HBM3", "565.57.01", 5, 16, 16, "0000:18:00.0"),
    "smi-q-2x-rtx3090.txt": (2, "NVIDIA GeForce RTX 3090", "560.35.03", 4, 16, 16, "0000:41:00.0"),
}


@pytest.mark.parametrize("file", REAL)
def test_a_real_dump_gives_its_gpus_driver_and_links(captures: Path, file: str) -> None:
    count, name, driver, generation_max, width, width_max, first = REAL[file]
    node = node_of(captures / file)
    assert [gpu.index for gpu in node.gpus] == list(range(count))
    assert {gpu.name for gpu in node.gpus} == {name}
    assert node.driver.library_version == driver
    assert (node.driver.init_code, node.driver.module_loaded, node.driver.device_count) == (0, True, count)
    assert {gpu.pcie.generation_max for gpu in node.gpus} == {generation_max}
    assert node.gpus[0].pcie.width == width
    assert {gpu.pcie.width_max for gpu in node.gpus} == {width_max}
    assert node.gpus[0].bus_id == first
    assert all(gpu.errors == () for gpu in node.gpus)
    assert (node.source.kind, node.source.name, node.source.files) == ("capture", file, (file,))


@pytest.mark.parametrize("file", [*REAL, "gtx-1070-ti.xml", "smi-q-gtx680.txt"])
def test_nothing_in_a_real_dump_fails_to_be_understood(captures: Path, file: str) -> None:
    def failures(value: object, path: str) -> list[str]:
        if isinstance(value, Missing):
            return [f"{path}: {value.reason}"] if value.kind == "failed" else []
        fields = getattr(value, "__struct_fields__", ())
        inside = [failures(getattr(value, field), f"{path}.{field}") for field in fields]
        return [line for lines in inside for line in lines]

    for gpu in node_of(captures / file).gpus:
        assert failures(gpu, "gpu") == []


def test_the_newest_schema_is_read_to_the_last_counter(captures: Path) -> None:
    gpu = node_of(captures / "qx-h100.xml").gpus[0]
    assert gpu.pci_device_id == "0x233010de"
    assert gpu.pci_subsystem_id == "0x16c110de"
    assert gpu.module_id == 7
    assert gpu.recovery_action == "none"
    assert gpu.pcie.replays == 150
    assert gpu.clocks.event_reasons == ("idle",)
    assert gpu.clocks.performance_state == 0
    assert gpu.throttle_times.sw_power_cap_us == 7015662857
    assert (gpu.thermal.gpu_c, gpu.thermal.margin_c, gpu.thermal.shutdown_margin_c) == (29, 58, -8)
    assert gpu.thermal.slowdown_c == ABSENT
    assert (gpu.power.draw_w, gpu.power.limit_w, gpu.power.min_limit_w) == (68.57, 700.0, 200.0)
    assert gpu.settings.virtualization == "passthrough"
    assert gpu.settings.mig_instances == ()
    assert gpu.memory_repair.banks_max_spare == 2560
    assert (gpu.ecc.enabled, gpu.ecc.uncorrected_volatile, gpu.ecc.sram_threshold_exceeded) == (True, 0, False)
    assert (gpu.fabric.state, gpu.fabric.status, gpu.fabric.clique_id) == ("completed", "success", 0)
    assert kind_of(gpu.fabric.health_summary) == "unsupported"
    assert gpu.processes == ()
    assert gpu.nvlinks == ABSENT


def test_text_and_xml_of_one_model_agree_on_what_both_hold(captures: Path) -> None:
    xml = node_of(captures / "qx-h100.xml").gpus[0]
    text = node_of(captures / "smi-q-8x-h100-sxm.txt").gpus[0]
    assert xml.pci_device_id == text.pci_device_id
    assert xml.board_part_number == text.board_part_number
    assert xml.memory_total_mib == text.memory_total_mib == 81559
    assert xml.clocks.sm_max_mhz == text.clocks.sm_max_mhz == 1980
    assert xml.thermal.shutdown_margin_c == text.thermal.shutdown_margin_c == -8
    assert xml.memory_repair.banks_max_spare == text.memory_repair.banks_max_spare == 2560
    assert xml.ecc == text.ecc
    assert xml.power.default_limit_w == text.power.default_limit_w == 700.0
    assert text.pcie.replays == 7
    assert text.settings.virtualization == "none"


def test_a_power_cap_shows_as_limit_below_default(captures: Path) -> None:
    power = node_of(captures / "rtx-3090-v12.xml").gpus[0].power
    assert (power.limit_w, power.requested_limit_w, power.default_limit_w) == (200.0, 200.0, 350.0)


def test_redacted_and_absent_values_are_absent_and_not_applicable_ones_unsupported(captures: Path) -> None:
    gpu = node_of(captures / "rtx-3090-v12.xml").gpus[0]
    assert kind_of(gpu.pci_device_id) == "absent"
    assert kind_of(gpu.serial) == "unsupported"
    assert kind_of(gpu.memory_repair.remap_pending) == "unsupported"
    assert kind_of(gpu.settings.addressing_mode) == "absent"


def test_a_kepler_card_is_mostly_unsupported_and_never_zero(captures: Path) -> None:
    gpu = node_of(captures / "smi-q-gtx680.txt").gpus[0]
    for value in (gpu.pcie.width, gpu.clocks.sm_mhz, gpu.clocks.event_reasons, gpu.power.limit_w, gpu.ecc.enabled):
        assert kind_of(value) == "unsupported"
    assert gpu.memory_repair.remap_failed == gpu.memory_repair.banks_no_spare
    assert gpu.memory_total_mib == 2000
    assert gpu.processes == ()


def test_a_dump_without_driver_or_count_says_so_but_its_gpus_imply_a_driver(captures: Path) -> None:
    node = node_of(captures / "gtx-1070-ti.xml")
    assert node.driver.init_code == 0
    assert (node.driver.library_version, node.driver.device_count) == (ABSENT, ABSENT)
    gpu = node.gpus[0]
    assert (gpu.pcie.generation, gpu.pcie.width) == (1, 16)
    assert (gpu.pcie.width_max, gpu.processes, gpu.power.limit_w) == (ABSENT, ABSENT, ABSENT)


def test_redacted_uuids_that_are_all_alike_break_nothing(captures: Path) -> None:
    text = (captures / "qx-h100.xml").read_text()
    for number in range(1, 8):
        text = text.replace(f"GPU-0000000{number}-0000-0000-0000-00000000000{number}", "GPU-" + "0" * 8)
    node = pasted(text)
    assert len({gpu.bus_id for gpu in node.gpus}) == 8


@pytest.fixture
def old() -> tuple[Gpu, ...]:
    return node_of(DUMPS / "smi-q-v100-390.txt").gpus


def test_the_oldest_text_form_is_read(old: tuple[Gpu, ...]) -> None:
    gpu = old[0]
    assert gpu.clocks.event_reasons == ("sw-power-cap", "hw-slowdown", "hw-thermal")
    assert set(gpu.clocks.event_reasons) <= set(EVENT_REASONS.values())
    assert (gpu.ecc.enabled, gpu.ecc.pending) == (True, False)
    assert (gpu.ecc.corrected_volatile, gpu.ecc.uncorrected_volatile) == (3, 1)
    assert (gpu.ecc.corrected_aggregate, gpu.ecc.uncorrected_aggregate) == (7, 2)
    repair = gpu.memory_repair
    assert (repair.retired_single_bit, repair.retired_double_bit, repair.retirement_pending) == (4, 1, True)
    thermal = gpu.thermal
    assert (thermal.gpu_c, thermal.slowdown_c, thermal.shutdown_c, thermal.max_operating_c) == (86, 87, 90, 83)
    assert (gpu.power.limit_w, gpu.power.requested_limit_w, gpu.power.default_limit_w) == (250.0, 260.0, 300.0)
    assert gpu.settings.compute_mode == "exclusive-process"


def test_processes_of_text_keep_name_kind_and_memory(old: tuple[Gpu, ...]) -> None:
    first, second = present(old[0].processes)
    assert (first.pid, first.name, first.kind, first.memory_mib) == (4711, "python train.py", "C", 290)
    assert (second.pid, second.kind) == (4712, "M+C")
    assert (kind_of(second.name), kind_of(second.memory_mib)) == ("denied", "unsupported")


def test_a_lost_gpu_is_an_error_of_the_whole_gpu_and_none_of_its_values_is_known(old: tuple[Gpu, ...]) -> None:
    lost = old[1]
    assert [(error.code, error.name) for error in lost.errors] == [(15, "GPU is lost")]
    for value in (lost.name, lost.uuid, lost.pcie.width, lost.thermal.gpu_c):
        assert kind_of(value) == "failed"


@pytest.fixture
def mig() -> tuple[Gpu, ...]:
    return node_of(DUMPS / "smi-q-mig.xml").gpus


def test_mig_devices_are_listed_with_their_instance_and_memory(mig: tuple[Gpu, ...]) -> None:
    settings = mig[0].settings
    assert settings.mig_enabled is True
    told = [(i.gpu_instance, i.compute_instance, i.memory_mib) for i in present(settings.mig_instances)]
    assert told == [(1, 0, 40192), (2, 0, 19968)]
    assert mig[0].memory_total_mib == 81920, "an instance's memory is not the GPU's"


def test_the_words_of_nvidia_smi_tell_why_a_value_is_missing(mig: tuple[Gpu, ...]) -> None:
    gpu = mig[0]
    assert kind_of(gpu.clocks.performance_state) == "failed"
    assert [error.code for error in gpu.errors] == [999]
    assert kind_of(gpu.memory_used_mib) == "denied"
    assert kind_of(gpu.utilization.gpu_pct) == "unsupported"
    assert gpu.utilization.memory_pct == Missing("not understood: 'banana'", "failed")
    assert kind_of(mig[1].uuid) == "absent"
    assert kind_of(mig[1].processes) == "unsupported"
    assert [error.code for error in mig[1].errors] == [16]


def test_older_reset_flags_are_a_recovery_action(mig: tuple[Gpu, ...], captures: Path) -> None:
    assert [gpu.recovery_action for gpu in mig] == ["gpu-reset", "drain-and-reset"]
    assert node_of(captures / "smi-q-2x-rtx3090.txt").gpus[0].recovery_action == "none"


@pytest.mark.parametrize(
    ("said", "action"),
    [
        *(("Reset", "gpu-reset"), ("GPU Reset Required", "gpu-reset"), ("Reboot", "node-reboot")),
        *(("Drain P2P", "drain-p2p"), ("Drain and Reset", "drain-and-reset"), ("Bus Reset", "bus-reset")),
        ("Sing", "value Sing"),
    ],
)
def test_a_recovery_action_is_named_and_an_unknown_one_kept(captures: Path, said: str, action: str) -> None:
    text = (captures / "qx-l40s.xml").read_text().replace("action>None<", f"action>{said}<")
    assert pasted(text).gpus[0].recovery_action == action


def test_parity_and_secded_add_up_and_so_do_sram_and_dram(mig: tuple[Gpu, ...]) -> None:
    ecc = mig[0].ecc
    assert (ecc.corrected_volatile, ecc.sram_uncorrected_volatile, ecc.uncorrected_volatile) == (5, 5, 10)
    assert ecc.uncorrected_aggregate == ABSENT


def test_modes_are_named_in_the_words_of_facts(mig: tuple[Gpu, ...]) -> None:
    assert [gpu.settings.virtualization for gpu in mig] == ["host-vgpu", "vgpu"]
    assert mig[0].settings.compute_mode == "prohibited"
    assert mig[0].fabric.state == "in-progress"


def test_an_unreadable_event_reason_makes_all_of_them_unknown(captures: Path) -> None:
    text = (captures / "qx-l40s.xml").read_text()
    broken = text.replace("hw_slowdown>Not Active<", "hw_slowdown>ERR!<", 1)
    assert kind_of(pasted(broken).gpus[0].clocks.event_reasons) == "failed"


def test_fewer_gpus_than_attached_are_a_note_and_no_missing_gpus(captures: Path) -> None:
    text = (captures / "qx-l40s.xml").read_text().replace("<attached_gpus>1<", "<attached_gpus>8<")
    node = pasted(text)
    assert node.driver.device_count == Missing("the dump shows 1 of 8 GPUs", "failed")
    assert node.source.notes == ("the dump shows 1 of 8 GPUs",)


LOST = "Unable to determine the device handle for GPU0000:05:00.0: GPU is lost.  Reboot the system to recover this GPU"


def test_a_handle_that_cannot_be_had_is_kept_as_the_drivers_error(captures: Path) -> None:
    text = (captures / "smi-q-2x-rtx3090.txt").read_text().replace(": 2\n", ": 3\n", 1)
    node = pasted(text + LOST + "\n")
    assert node.driver.handle_errors == (LOST,)
    assert node.driver.device_count == 3
    # it has no index: the text has none
    assert [(gpu.index, gpu.bus_id) for gpu in node.gpus if "0000:05" in gpu.bus_id] == []
    xml = LOST + "\n" + (captures / "qx-l40s.xml").read_text()
    assert pasted(xml).driver.handle_errors == (LOST,)


def test_a_dump_that_is_only_the_lost_gpu_gives_it_no_index() -> None:
    node = pasted(LOST + "\n")
    assert node.driver.handle_errors == (LOST,)
    assert node.gpus == ()


def test_a_lost_gpu_beside_a_list_without_bus_ids_is_none_of_the_listed() -> None:
    listed = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-6a1b1c9e-1111-2222-3333-444455556666)\n"
    node = pasted(f"$ nvidia-smi\n{LOST}\n$ nvidia-smi -L\n{listed}{LOST}\n")
    assert [(gpu.index, gpu.bus_id, gpu.errors) for gpu in node.gpus] == [(0, "unknown-0", ())]
    assert node.driver.handle_errors == (LOST,)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that ...", 9),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54", 18),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12),
        ("Failed to initialize NVML: Unknown Error", 999),
        ("2022/05/13 23:09:23 Failed to initialize NVML: could not load NVML library.", 12),
        ("Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND", 12),
        ("Failed to initialize NVML: Insufficient Permissions", 4),
        ("Failed to initialize NVML: GPU access blocked by the operating system", 17),
    ],
)
def test_an_nvidia_smi_that_could_not_start_is_a_driver_that_does_not_answer(said: str, code: int) -> None:
    driver = pasted(said + "\n").driver
    assert driver.init_code == code
    assert driver.init_error == said.splitlines()[0]


def test_no_devices_found_is_a_driver_without_gpus() -> None:
    node = pasted("No devices were found\n")
    assert (node.driver.init_code, node.driver.device_count, node.gpus) == (0, 0, ())


def test_a_text_dump_that_ends_inside_a_gpu_is_cut_off(captures: Path) -> None:
    lines = (captures / "smi-q-8x-h100-sxm.txt").read_text().splitlines(keepends=True)
    node = pasted("".join(lines[:300]))
    assert node.source.notes == ("the dump is cut off inside GPU 0000:2a:00.0", "the dump shows 2 of 8 GPUs")
    whole, cut = node.gpus
    assert (whole.processes, cut.processes) == ((), CUT)
    assert isinstance(whole.power.draw_w, float)
    assert known(cut.name) == known(whole.name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==============NVSMI LOG==============\n", "holds no GPU"),
        ("==NVSMI LOG==\nGPU 0000:01:00.0\n" + "".join(" " * i + "A\n" for i in range(1, 40)), "nested deeper"),
        ("<nvidia_smi_log></nvidia_smi_log>", "holds no GPU"),
        ("<nvidia_smi_log><gpu id='01:00.0'/><gpu id='01:00.0'/></nvidia_smi_log>", "is there twice"),
        ("<nvidia_smi_log>" + "<a>" * 100, "nested deeper than 32"),
        ("<?xml version='1.0'?>\n<x><nvidia_smi_log ></nvidia_smi_log></x>", "XML of something else: <x>"),
    ],
)
def test_a_broken_dump_is_one_line_that_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(SourceError, match=said) as error:
        pasted(text)
    assert str(error.value).startswith("standard input: ")
    assert "\n" not in str(error.value)


def test_a_gpu_that_a_text_shows_twice_is_one_and_its_later_readings_count() -> None:
    text = (DUMPS / "smi-q-v100-390.txt").read_text()
    (first,) = ("".join(part.splitlines(keepends=True)[1:]) for part in text.split("\nGPU ")[1:2])
    hot, other = first.replace(": 86 C", ": 77 C"), first.replace("GPU-1111", "GPU-2222")
    gpus = pasted(f"{first}\n{other}\n{hot}\n").gpus
    assert [(gpu.index, gpu.thermal.gpu_c) for gpu in gpus] == [(0, 77), (1, 86)]
    # what only a later text says of a GPU is said of that GPU
    ill = other.replace("    Ecc Mode\n", "    Ecc Mode\n        Scrubber : Failed\n")
    assert [each.text for each in pasted(f"{first}\n{other}\n{ill}\n").reported] == [
        "GPU 1: ecc_mode/scrubber is Failed"
    ]
    # GPUs that redaction made alike stay two
    alike = re.sub(r"(GPU UUID +: GPU-).*", r"\g<1>00000000-0000-0000-0000-000000000000", f"{first}\n{hot}\n")
    assert len(pasted(alike).gpus) == 2


def test_gpus_that_redaction_gave_one_plausible_uuid_stay_several_and_in_order() -> None:
    text = (DUMPS / "smi-q-v100-390.txt").read_text()
    head, *parts = re.split(r"\nGPU \S+\n", text)
    whole = re.sub(r"(Serial Number|Bus Id)( +: ).*", r"\1\2N/A", parts[0])
    whole = re.sub(r"( +)Serial Number", r"\1Minor Number : N/A\n\g<0>", whole)
    whole = re.sub(r"( +)Bus Id", r"\1Bus : N/A\n\g<0>", whole)

    def node(*gpus: str, attached: str = "") -> list[int | Missing]:
        counted = re.sub(r"(Attached GPUs +: ).*", rf"\g<1>{attached}", head) if attached else ""
        return [gpu.thermal.gpu_c for gpu in pasted("\n".join((counted, *gpus))).gpus]

    hot = whole.replace(": 86 C", ": 77 C")
    # the dump itself counts as many GPUs, or more than a cut dump shows
    assert node(whole, hot, whole, attached="3") == [86, 77, 86]
    assert node(whole, hot, attached="8") == [86, 77]
    # each value that no two GPUs share tells them apart
    for name in ("Serial Number", "Minor Number", "Bus", "Bus Id"):
        other = re.sub(rf"(\s{name} +: )N/A", r"\g<1>1", hot)
        assert node(whole, other) == [86, 77], name
    # with nothing of that, they are one that is shown again
    assert node(whole, hot) == [77]
