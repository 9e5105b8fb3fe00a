"""Verdicts from the kernel log and the host's tools, with and without a driver that answers."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.registry import registry
from gpudoctor.facts.captures.host.lspci import parse_lspci
from gpudoctor.facts.kernel_log.lines import read_kernel_text
from gpudoctor.facts.model.driver import ApiMismatch, DkmsBuild, HostEventKind, KernelEventKind, KernelLog, LoadFailure
from gpudoctor.facts.model.gpu import Gpu, MemoryRepair, NvLink, PcieHop, PcieLink
from gpudoctor.facts.model.node import Driver, Host, Node, PciBus, PciDevice, Source
from gpudoctor.report.judge import judge as judge_all
from tests.checks.gpu_nodes import bad, only
from tests.checks.one_check import expect, finds, gpu, judge, text_of

BUS = "0000:9b:00.0"
FAILED = f"NVRM: GPU {BUS}: RmInitAdapter failed! (0x25:0x65:1457)"
CAPTURE = Source("capture", "dmesg.txt")


def log(*lines: str) -> KernelLog:
    return read_kernel_text("".join(f"[   12.500000] {line}\n" for line in lines), "dmesg.txt")


def logged(*lines: str, **facts: Any) -> Node:
    return Node(source=CAPTURE, kernel_log=log(*lines), **facts)


# --- GPUs that do not start ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (FAILED, "RmInitAdapter failed (0x25:0x65:1457)"),
        (f"NVRM: BAR1 is 0M @ 0x0 (PCI:{BUS})", "memory window"),
        (f"nvidia {BUS}: probe with driver nvidia failed with error -1", "probe"),
        (f"NVRM: GPU {BUS}: GPU has fallen off the bus.", "fallen off the bus"),
    ],
)
def test_a_gpu_that_did_not_start_fails_with_its_bus_id_in_both_checks(line: str, said: str) -> None:
    for check_id in ("gpu.xid", "gpu.count"):
        finding = only(check_id, logged(line))
        assert (finding.status, finding.subject.bus_id) == (Status.FAIL, BUS)
        assert said in text_of(finding)
        assert finding.advice


def test_a_gpu_that_started_since_is_a_warning_and_counted_as_there() -> None:
    node = logged(FAILED, gpus=(gpu(0).__class__(0, BUS, name="NVIDIA H100 80GB HBM3", memory_used_mib=4),))
    assert only("gpu.xid", node).status is Status.WARN
    assert bad("gpu.count", node) == ()


NAMED = f"NVRM: The NVIDIA GPU {BUS} (PCI ID: 10de:2c58)"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("NVRM: installed in this system requires use of the NVIDIA open kernel modules.", "needs NVIDIA's open"),
        ("NVRM: installed in this system is not supported by open", "it has no GSP"),
        ("NVRM: installed in this system is not supported by the", "release does not support this GPU"),
    ],
)
def test_a_gpu_that_needs_another_driver_is_not_blamed(line: str, said: str) -> None:
    node = logged(NAMED, line, FAILED, f"nvidia: probe of {BUS} failed with error -1")
    finding = only("gpu.count", node)
    assert (finding.status, finding.subject.bus_id) == (Status.FAIL, BUS)
    assert said in text_of(finding)
    assert "RmInitAdapter" not in text_of(finding)
    assert "the board" not in text_of(finding)
    assert "reseat" not in str(finding.advice).lower()
    assert only("gpu.xid", node).status is Status.WARN


def test_a_failed_start_long_after_a_driver_refused_the_gpu_is_judged_by_itself() -> None:
    text = (
        f"[   10.0] {NAMED}\n[   10.1] NVRM: installed in this system is not supported by the NVIDIA 470 driver\n"
        f"[ 9000.0] {FAILED}\n"
    )
    node = Node(source=CAPTURE, kernel_log=read_kernel_text(text, "dmesg.txt"))
    for check_id in ("gpu.count", "gpu.xid"):
        finds(bad(check_id, node), Status.FAIL, "RmInitAdapter")


def test_an_old_card_beside_gpus_that_work_is_a_warning() -> None:
    old = logged(
        NAMED,
        "NVRM: installed in this system is not supported by the NVIDIA 580.65.06 driver release.",
        f"nvidia: probe of {BUS} failed with error -1",
        gpus=(gpu(0),),
    )
    assert only("gpu.count", old).status is Status.WARN
    assert only("gpu.xid", old).status is Status.WARN


def test_a_gpu_that_only_the_bus_shows_has_not_started() -> None:
    listed = gpu(0).__class__(0, BUS, name="NVIDIA H100")
    node = logged(FAILED, gpus=(listed,), pci=PciBus(nvidia_devices=(PciDevice(BUS, "0x030200"),)))
    assert only("gpu.xid", node).status is Status.FAIL
    assert "the driver does not show it" in text_of(only("gpu.count", node))
    quiet = logged("eth0: up", gpus=(listed,), pci=node.pci, driver=Driver(init_code=9))
    assert judge("gpu.count", quiet).status is Status.SKIP, "a list of the bus counts no GPU of the driver"


def test_lines_that_call_the_gpu_by_a_number_belong_to_the_only_one_that_failed() -> None:
    wpr2 = "NVRM: GPU3 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP"
    finding = only("gpu.xid", logged(FAILED, wpr2))
    assert finding.subject.bus_id == BUS
    assert "does not boot" in text_of(finding)
    other = FAILED.replace("9b", "5c")
    findings = bad("gpu.xid", logged(FAILED, other, wpr2))
    assert {f.subject.bus_id for f in findings} == {BUS, "0000:5c:00.0", None}, "nothing says which one it is"


def test_a_driver_that_started_no_gpu_at_all_fails_without_a_bus_id() -> None:
    for line in (
        "NVRM: The NVIDIA probe routine failed for 2 device(s).",
        "NVRM: None of the NVIDIA devices were init",
    ):
        node = logged(line.replace("init", "initialized."))
        assert only("gpu.xid", node).status is Status.FAIL
    old_card = logged("NVRM: The NVIDIA probe routine failed for 1 device(s).", gpus=(gpu(0),))
    assert only("gpu.xid", old_card).status is Status.WARN, "beside GPUs that run it may be a card that is too old"


# --- Xids ---------------------------------------------------------------------------------------


def xid(code: int, rest: str, bus: str = "PCI:0000:10:00") -> str:
    return f"NVRM: Xid ({bus}): {code}, pid=7, name=python3, {rest}"


@pytest.mark.parametrize(
    ("code", "status"),
    [(149, Status.FAIL), (145, Status.FAIL), (48, Status.FAIL), (31, Status.WARN), (999, Status.WARN)],
)
def test_an_xid_is_what_it_says_led_to_it(code: int, status: Status) -> None:
    told = judge("gpu.xid", logged(xid(45, f"Ch 00000003 caused by previous Xid {code}"))).findings
    finds(told, status, f"Xid {code}")


def test_a_row_that_waits_for_a_reset_warns_until_the_gpu_says_that_none_does() -> None:
    line = xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate.")
    assert only("gpu.xid", logged(line)).status is Status.WARN
    for pending, findings in ((False, 0), (True, 1)):
        repair = MemoryRepair(remap_pending=pending)
        assert len(bad("gpu.xid", logged(line, gpus=(gpu(0, memory_repair=repair, memory_used_mib=4),)))) == findings
    assert bad("gpu.xid", logged(xid(63, "Row Remapper: row remapped"))) == ()


def test_the_registers_of_an_nvlink_error_are_told_in_words() -> None:
    line = xid(74, "NVLink: fatal error detected on link 6(0x200010, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
    said = text_of(only("gpu.xid", logged(line)))
    assert "link 6" in said
    assert "marginal signal" in said
    assert "register 1, bit 4" in said
    assert "registers 0x8" in text_of(only("gpu.xid", logged(line.replace("0x200010", "0x8"))))


def test_nvlink_5_names_its_unit_link_and_subcode() -> None:
    line = xid(149, "Fatal, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0 0x0 0x0 0x0 0x0)")
    assert "NETIR, link 8, subcode 4" in text_of(only("gpu.xid", logged(line)))


@pytest.mark.parametrize("hidden", ["PCI:0000:xx:00", "PCI:<redacted>"])
def test_a_hidden_bus_id_hides_no_error(hidden: str) -> None:
    bad_ones = bad("gpu.xid", logged(xid(79, "GPU has fallen off the bus.", hidden), gpus=(gpu(0), gpu(1))))
    finds(bad_ones, Status.FAIL, "Xid 79", kind="node")


def test_an_xid_behind_a_programs_tag_is_no_pass_and_names_the_code() -> None:
    line = f"Nov 14 07:00:14 node12 klogd: {xid(79, 'GPU has fallen off the bus.')}\n"
    node = Node(source=CAPTURE, kernel_log=read_kernel_text(line, "syslog"), gpus=(gpu(0),))
    expect(judge("gpu.xid", node), Status.UNKNOWN, "Xid 79 of 0000:10:00.0")


# --- the driver ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "said", "advised"),
    [
        ("signature-rejected", "Secure Boot", "mokutil"),
        ("other-kernel", "another kernel", "uname -r"),
        ("build-failed", "not built", "linux-headers"),
        ("no-container-runtime", "NVIDIA runtime", "nvidia-ctk"),
        ("other-driver", "another driver holds", "lspci -k"),
        ("refused", "no device", "lspci -nn"),
    ],
)
@pytest.mark.parametrize("code", [9, None])
def test_each_cause_of_a_driver_that_is_not_loaded_has_its_own_advice(
    cause: Any, said: str, advised: str, code: int | None
) -> None:
    driver = Driver(load_failures=(LoadFailure(cause, "the tool's line"),))
    if code is not None:
        driver = Driver(init_code=code, load_failures=driver.load_failures)
    finds(bad("driver.loaded", Node(source=CAPTURE, driver=driver)), Status.FAIL, said, advised, "the tool's line")


def test_a_driver_that_runs_is_loaded_whatever_a_tool_said_before() -> None:
    driver = Driver(init_code=0, load_failures=(LoadFailure("signature-rejected", "x"),))
    assert bad("driver.loaded", Node(driver=driver)) == ()


def test_the_kernel_logs_word_is_heard_too() -> None:
    node = logged("Loading of unsigned module is rejected", driver=Driver(init_code=9))
    assert "Secure Boot" in text_of(only("driver.loaded", node))
    taken = logged("NVRM: The NVIDIA probe routine was not called for 3 device(s).", "NVRM: nouveau, rivafb or rivatv")
    assert only("driver.loaded", taken).status is Status.FAIL
    # nouveau's own lines may be from before it was unloaded
    assert only("driver.loaded", logged(f"nouveau {BUS}: NVIDIA GA102 (172000a1)")).status is Status.UNKNOWN


def test_dkms_without_a_build_for_the_running_kernel() -> None:
    builds = (DkmsBuild("550.54.15", "6.8.0-44-generic", "installed"),)
    node = Node(driver=Driver(init_code=9, dkms=builds), host=Host(kernel="6.8.0-45-generic"))
    finding = only("driver.loaded", node)
    assert "DKMS" in text_of(finding)
    assert "6.8.0-44-generic" in text_of(finding)
    built = Node(driver=Driver(init_code=9, dkms=builds), host=Host(kernel="6.8.0-44-generic"))
    assert "DKMS)" not in str(only("driver.loaded", built).found)


def test_an_unknown_error_of_nvml_speaks_of_the_container() -> None:
    finding = only("driver.loaded", Node(driver=Driver(init_code=999, init_error="Unknown Error")))
    assert finding.status is Status.FAIL
    assert "daemon-reload" in text_of(finding)
    assert any("restart it" in step.text for step in finding.advice)


@pytest.mark.parametrize("code", [18, 999, None])
def test_a_mismatch_in_the_log_names_both_versions(code: int | None) -> None:
    driver = Driver() if code is None else Driver(init_code=code)
    node = Node(driver=driver, kernel_log=KernelLog(events=(), api_mismatch=ApiMismatch("550.54.15", "535.183.01")))
    finds(bad("driver.version-match", node), Status.FAIL, "kernel module 535.183.01, user library 550.54.15")


def test_a_mismatch_of_which_one_line_was_kept_fails() -> None:
    line = "NVRM: API mismatch: the client has the version 550.54.15, but"
    for more in ({}, {"driver": Driver(module_version="535.183.01")}):
        finds(bad("driver.version-match", logged(line, **more)), Status.FAIL, "library 550.54.15")
    same = Driver(module_version="550.54.15")
    assert bad("driver.version-match", logged(line, driver=same)) == ()


def test_a_mismatch_that_any_user_can_write_fails_no_driver_that_answers() -> None:
    driver = Driver(init_code=0, module_version="535.183.01", library_version="535.183.01")
    node = Node(driver=driver, kernel_log=KernelLog(events=(), api_mismatch=ApiMismatch("999.1", "535.183.01")))
    assert bad("driver.version-match", node) == ()


def test_a_module_on_the_disk_that_is_not_the_loaded_one_warns() -> None:
    node = Node(driver=Driver(module_version="535.183.01", disk_version="550.54.15"))
    assert only("driver.version-match", node).status is Status.WARN


# --- PCIe ---------------------------------------------------------------------------------------

LIMITED = (
    "pci 0000:8b:00.0: {now} Gb/s available PCIe bandwidth, limited by {speed} GT/s PCIe x16 link at 0000:87:00.0 "
    "(capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
)


def test_a_slower_link_above_is_a_warning_that_names_the_device_without_any_gpu_known() -> None:
    bad_ones = bad("pcie.upstream", logged(LIMITED.format(now="252.048", speed="16.0")))
    finds(bad_ones, Status.WARN, "0000:87:00.0", bus_id="0000:8b:00.0")
    finds(bad("pcie.upstream", logged(LIMITED.format(now="32.000", speed="2.5"))), Status.UNKNOWN)
    assert judge("pcie.upstream", logged("eth0: up")).status is Status.SKIP


def lspci_gpu(*body: str, header: str = "9b:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)") -> Node:
    tree = parse_lspci("\n".join([header, *(f"\t\t{line}" for line in body)]) + "\n")
    shown = gpu(0).__class__(0, BUS, name="NVIDIA H100")
    gpus = (shown.__class__(0, BUS, name="NVIDIA H100", pcie=tree.link(shown)),)
    return Node(source=CAPTURE, gpus=gpus, pci=PciBus(nvidia_devices=tree.nvidia_devices))


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("LnkSta: Speed 16GT/s (downgraded), Width x8 (downgraded)",), Status.WARN),
        (("LnkSta: Speed 2.5GT/s (downgraded), Width x16 (ok)",), Status.PASS),
        (("LnkSta: Speed 16GT/s, Width x8",), Status.SKIP),
        (("LnkCap: Port #0, Speed 32GT/s, Width x16", "LnkSta: Speed 16GT/s, Width x8"), Status.WARN),
        (("LnkCap: Port #0, Speed 32GT/s, Width x16", "LnkSta: Speed 16GT/s, Width x16"), Status.PASS),
    ],
)
def test_lspcis_link_of_a_gpu_is_judged(lines: tuple[str, ...], status: Status) -> None:
    assert judge("pcie.link-width", lspci_gpu(*lines)).status is status


def test_nvmls_lanes_count_before_lspcis() -> None:
    tree = parse_lspci("9b:00.0 3D controller: NVIDIA Corporation GH100\n\t\tLnkSta: Speed 2.5GT/s, Width x8\n")
    told = gpu(0).__class__(0, BUS, pcie=PcieLink(width=16, width_max=16))
    assert (tree.link(told).width, tree.link(told).path) == (16, tree.path(BUS))
    assert isinstance(tree.path(BUS), tuple)
    assert PcieHop(BUS).width_downgraded == PcieHop(BUS).speed_downgraded


def test_a_function_that_reads_all_ones_is_lost() -> None:
    header = "9b:00.0 3D controller: NVIDIA Corporation GH100 (rev ff) (prog-if ff)"
    finds(bad("gpu.lost", lspci_gpu("!!! Unknown header type 7f", header=header)), Status.FAIL, bus_id=BUS)
    laptop = header.replace("GH100", "GA107M [GeForce RTX 3050 Mobile]")
    assert bad("gpu.lost", lspci_gpu(header=laptop)) == (), "a laptop's GPU is off while nothing uses it"


# --- events whose check has no GPU to look at ---------------------------------------------------


@pytest.mark.parametrize(
    ("line", "check_id", "status"),
    [
        (
            "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer1's postRxDetLinkMask failed!",
            "nvlink.links",
            "unknown",
        ),
        ("DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xffe000", "pcie.acs", "unknown"),
        ("Loading of unsigned module is rejected", "driver.loaded", "unknown"),
        (
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible",
            "pcie.errors",
            "warn",
        ),
        ("pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=x", "pcie.errors", "warn"),
        ("pcieport 0000:00:03.0: DPC: containment event, status:0x1f01 source:0x0000", "pcie.errors", "warn"),
        (f"amdgpu {BUS}: amdgpu: GPU reset begin!", "host.kernel", "unknown"),
        (f"amdgpu {BUS}: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout", "host.kernel", "unknown"),
        (f"habanalabs {BUS}: Failed to initialize hl2. Device is NOT usable !", "host.kernel", "fail"),
    ],
)
def test_an_event_that_is_alone_in_its_log_is_no_pass_of_the_node(line: str, check_id: str, status: str) -> None:
    node = logged(line)
    assert only(check_id, node).status.value == status
    assert line in text_of(only(check_id, node))
    assert judge_all(node).verdict == status


@pytest.mark.parametrize(
    "line",
    [
        "Loading of unsigned module is rejected",
        "nvidia: version magic '6.8.0-31-generic SMP' should be '6.8.0-35-generic SMP'",
        f"nouveau {BUS}: NVIDIA AD102 (192000a1)",
    ],
)
def test_a_driver_that_was_refused_is_no_pass_beside_gpus_that_only_the_bus_shows(line: str) -> None:
    assert only("driver.loaded", logged(line, gpus=(Gpu(0, BUS, name="AD102"),))).status is Status.UNKNOWN


def test_every_kind_of_event_has_one_check_that_judges_it() -> None:
    owned = [kind for check in registry() for kind in check.events]
    assert sorted(owned) == sorted({*get_args(KernelEventKind), *get_args(HostEventKind)})


def test_an_nvlink_error_beside_gpus_whose_links_were_not_read_is_unknown() -> None:
    line = "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer1's postRxDetLinkMask failed!"
    assert only("nvlink.links", logged(line, gpus=(gpu(0),))).status is Status.UNKNOWN
    up = gpu(0, nvlinks=tuple(NvLink(link, "active") for link in range(18)))
    assert bad("nvlink.links", logged(line, gpus=(up,))) == ()


def test_a_signature_that_the_kernel_only_complains_about_is_no_gap() -> None:
    assert bad("driver.loaded", logged("PKCS#7 signature not signed with a trusted key")) == ()


def test_few_corrected_errors_of_a_bridge_are_a_warning_in_a_text_and_named_on_a_live_node() -> None:
    line = "pcieport 0000:00:03.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)"
    live = replace(logged(line), source=Source("live"))
    report = judge_all(live)
    assert report.verdict != "warn"
    assert any(all(word in note for word in ("set aside", "0000:00:03.0", "Correctable")) for note in report.run.notes)
    announced = "pcieport 0000:00:03.0: AER: Correctable error message received from 0000:00:00.0"
    for lines in ([announced, line], [line] * 10):
        finds(bad("pcie.errors", logged(*lines)), Status.WARN, bus_id="0000:00:03.0")
    assert only("pcie.errors", replace(live, kernel_log=logged(*[line] * 10).kernel_log)).status is Status.WARN


def test_corrected_errors_of_a_bridge_warn_beside_gpus_only_if_one_is_behind_it() -> None:
    line = "pcieport 0000:00:1b.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    elsewhere = logged(*[line] * 12, gpus=(gpu(0),))
    assert bad("pcie.errors", elsewhere) == ()
    assert any("0000:00:1b.0" in note for note in judge_all(elsewhere).run.notes)
    path = (PcieHop(bus_id=gpu(0).bus_id), PcieHop(bus_id="0000:00:1b.0"))
    above = gpu(0, pcie=PcieLink(path=path))
    assert only("pcie.errors", logged(*[line] * 12, gpus=(above,))).status is Status.WARN


def test_uncorrected_errors_of_a_gpu_are_not_outweighed_by_its_replays() -> None:
    line = f"nvidia {BUS}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer"
    one = Gpu(0, BUS, pcie=PcieLink(replays=0))
    assert only("pcie.errors", logged(line, gpus=(one,))).status is Status.WARN
    assert bad("pcie.errors", logged(line.replace("Uncorrected (Non-Fatal)", "Corrected"), gpus=(one,))) == ()


def test_a_gpu_that_the_kernel_cannot_recover_fails_beside_the_port_that_lost_data() -> None:
    told = f"nvidia {BUS}: AER: can't recover (no error_detected callback)"
    finds(bad("pcie.errors", logged(told)), Status.FAIL, bus_id=BUS)
    port = "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
    announced = f"pcieport 0000:00:03.0: AER: Uncorrected (Non-Fatal) error received: {BUS}"
    own = f"nvidia {BUS}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer"
    sound = told.replace("nvidia", "snd_hda_intel").replace(".0:", ".1:")
    counted = Gpu(0, BUS, pcie=PcieLink(replays=0))
    for facts in ({}, {"gpus": (counted,)}):
        found = bad("pcie.errors", logged(announced, port, own, told, sound, **facts))
        assert [(f.status, f.subject.bus_id) for f in found] == [
            (Status.FAIL, BUS),
            (Status.WARN, "0000:00:03.0"),
        ]


def test_a_display_of_another_vendor_beside_nvidia_gpus_is_no_gap() -> None:
    for words in ("GPU reset begin!", "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"):
        line = f"amdgpu 0000:c1:00.0: amdgpu: {words}"
        assert bad("host.kernel", logged(line, gpus=(gpu(0),))) == ()


def test_what_a_program_did_is_named_in_the_report_of_a_healthy_node_and_a_warning_in_a_text() -> None:
    node = logged("NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=python, Ch 00000030, MMU Fault")
    report = judge_all(replace(node, source=Source("live")))
    assert report.counts.warn == report.counts.fail == 0
    assert [note for note in report.run.notes if "Xid 31" in note and "0000:01:00.0" in note]
    finding = only("gpu.xid", node)
    assert (finding.status, finding.subject.bus_id, "Xid 31" in text_of(finding)) == (Status.WARN, "0000:01:00.0", True)
    switch = judge_all(logged("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion interrupt"))
    assert [note for note in switch.run.notes if "SXid 22013" in note and "0000:04:00.0" in note]


def test_a_container_engine_without_a_runtime_is_told_beside_a_driver_that_runs() -> None:
    refused = LoadFailure("no-container-runtime", 'could not select device driver "nvidia" with capabilities: [[gpu]]')
    node = Node(source=CAPTURE, gpus=(gpu(0),), driver=Driver(init_code=0, load_failures=(refused,)))
    finds(bad("driver.loaded", node), Status.WARN, "could not select")
