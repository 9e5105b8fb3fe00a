"""Verdicts on pasted text: from the text that people paste to the finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.report.judge import judge as judge_all
from tests.checks.one_check import finds, judge, text_of
from tests.facts import transcripts
from tests.facts.loaded_nodes import pasted
from tests.facts.transcripts import gpu_list, table
from tests.narrowed import present

LOST = (
    "Unable to determine the device handle for GPU0000:C7:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)
XID_79 = (
    "[  900.5] NVRM: Xid (PCI:0000:c7:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    "[  900.6] NVRM: GPU 0000:c7:00.0: GPU has fallen off the bus.\n"
)
BUS = "".join(f"{bus}:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100] (rev a1)\n" for bus in ("1a", "c7"))
MATRIX = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV12\tNV12\tNV12\t0-31\t0\n"
    "GPU1\tNV12\t X \tNV12\tNV12\t0-31\t0\n"
    "GPU2\tNV12\tNV12\t X \t{odd}\t32-63\t1\n"
    "GPU3\tNV12\tNV12\t{odd}\t X \t32-63\t1\n"
)


def bad(check_id: str, text: str) -> list[Finding]:
    return [f for f in judge(check_id, pasted(text)).findings if f.status not in (Status.PASS, Status.SKIP)]


def test_evidence_from_a_text_names_what_the_text_says_and_no_call_that_nobody_made() -> None:
    dumps = Path(__file__).parents[1] / "facts" / "dumps"
    names: dict[str, set[str]] = {}
    for dump in sorted(dumps.iterdir()):
        checks = judge_all(load_source(str(dump)).node).checks
        names[dump.name] = {each.source for check in checks for found in check.findings for each in found.evidence}
    assert not [name for each in names.values() for name in each if re.search(r"nvml[A-Z]|/sys/bus/pci", name)]
    assert "this text: current PCIe link width" in names["lspci-2-gpus.txt"]
    assert "this text: current link width of 0000:17:01.0" in names["lspci-2-gpus.txt"]
    assert "this text: NVLink state" in names["nvlink-status-mixed.txt"]


def test_a_gpu_that_only_its_bus_id_names_gets_no_index() -> None:
    finds(bad("gpu.lost", LOST), Status.FAIL, "lost. Reboot", label="GPU 0000:c7:00.0")
    assert bad("gpu.lost", "$ nvidia-smi\nNo devices were found\n") == []


def test_a_lost_gpu_beside_a_list_of_the_bus_takes_no_other_gpu_with_it() -> None:
    (finding,) = bad("gpu.lost", f"$ nvidia-smi\n{LOST}$ lspci\n{BUS}")
    assert finding.subject.bus_id == "0000:c7:00.0"
    assert bad("gpu.count", f"$ nvidia-smi\n{LOST}$ lspci\n{BUS}") == []


def test_the_line_behind_an_xid_79_is_not_told_again() -> None:
    (finding,) = bad("gpu.xid", XID_79)
    assert present(finding.found).text == "Xid 79: GPU has fallen off the bus"


def test_a_log_alone_does_not_say_what_the_driver_shows() -> None:
    alone = "NVRM: GPU 0000:c7:00.0: GPU has fallen off the bus.\n"
    (finding,) = bad("gpu.count", alone)
    assert finding.status is Status.FAIL
    assert "driver does not show" not in text_of(finding)


@pytest.mark.parametrize(("odd", "status"), [("NV12", None), ("SYS", Status.UNKNOWN), ("NV6", Status.FAIL)])
def test_an_odd_pair_of_a_mesh_does_not_pass_where_the_model_is_not_known(odd: str, status: Status | None) -> None:
    found = bad("nvlink.topology", MATRIX.format(odd=odd))
    assert [(f.status, f.subject.gpus) for f in found] == ([(status, (2, 3))] if status else [])


def test_an_odd_pair_behind_switches_fails_and_a_bridged_pair_beside_a_single_card_does_not() -> None:
    named = "".join(
        f"GPU {i}: NVIDIA A100-SXM4-80GB (UUID: GPU-{i}0000000-1111-2222-3333-444455556666)\n" for i in range(4)
    )
    text = f"{MATRIX.format(odd='SYS')}$ nvidia-smi -L\n{named}"
    found = [f for result in judge_all(pasted(text)).checks for f in result.findings if f.status is Status.FAIL]
    assert [f.subject.gpus for f in found] == [(2, 3)]
    bridged = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tSYS\nGPU2\tSYS\tSYS\t X \n"
    assert bad("nvlink.topology", bridged) == []


def test_the_states_that_grep_leaves_of_ibstat_are_those_of_port_1() -> None:
    rows = "CA 'mlx5_{}'\n\t\tState: {}\n\t\tPhysical state: {}\n\t\tLink layer: InfiniBand\n"
    text = rows.format(0, "Active", "LinkUp") + rows.format(1, "Down", "Polling")
    finds(bad("network.infiniband", text), Status.WARN, "mlx5_1 port 1 is DOWN (Polling)")
    two = "CA 'mlx4_0'\n\t\tState: Active\n\t\tState: Down\n"
    finds(bad("network.infiniband", two), Status.WARN, "mlx4_0 port 2 is DOWN")


@pytest.mark.parametrize("options", ["-s 41:00.0 -vv", "-vvs 0000:41:00.0", "-vvv -s41:00.0"])
def test_the_lines_that_grep_leaves_of_lspci_are_of_the_function_it_was_asked_for(options: str) -> None:
    text = (
        f"root@n1:/# lspci {options} | grep -i lnk\n"
        "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16\n\t\tLnkSta:\tSpeed 16GT/s (ok), Width x4 (downgraded)\n"
        "root@n1:/# nvidia-smi --query-gpu=index,name,pci.bus_id --format=csv,noheader\n"
        "0, NVIDIA L40S, 00000000:01:00.0\n1, NVIDIA L40S, 00000000:41:00.0\n"
    )
    node = pasted(text)
    assert node.source.notes == ()
    assert {gpu.index: known(gpu.pcie.width) for gpu in node.gpus} == {0: None, 1: 4}
    (finding,) = bad("pcie.link-width", text)
    assert finding.subject.gpu == 1


def err_row(cells: str, name: str | None = None) -> str:
    """The table of two GPUs, with these cells of the second one's row of state, and this name of it."""
    rows = table(load_node("rtx4090-4", {})).splitlines(keepends=True)
    at = [number for number, row in enumerate(rows) if "MiB /" in row][1]
    rows[at] = f"|{cells} |{rows[at].split('|', 2)[2]}"
    if name is not None:
        rows[at - 1] = rows[at - 1].replace("NVIDIA GeForce RTX 4090", f"{name:23}")
    return "".join(rows)


@pytest.mark.parametrize(
    ("name", "mode", "status"),
    [(None, "Off", Status.UNKNOWN), (None, "On ", Status.FAIL), ("ERR!", "Off", Status.FAIL)],
    ids=["may sleep", "persistence mode", "no name"],
)
def test_a_gpu_that_the_table_could_not_read_is_one_finding_with_what_to_do(
    name: str | None, mode: str, status: Status
) -> None:
    text = re.sub(r"  On (?=\|)", f"  {mode}", err_row(" ERR!  ERR! ERR!          ERR! / ERR! ", name))
    text = text.replace("21:00.0 Off |                  Off |", "21:00.0 Off |                 ERR! |")
    (finding,) = bad("gpu.lost", text)
    assert (finding.status, finding.subject.gpu) == (status, 1)
    assert "ERR!" in text_of(finding)
    assert finding.advice
    report = judge_all(pasted(text))
    heads = [r.id for r in report.checks for f in r.findings if f.status is status and f.explained_by is None]
    assert heads == ["gpu.lost"]


def test_a_single_cell_that_says_err_is_no_pass_either() -> None:
    (finding,) = bad("gpu.lost", err_row(" ERR!   47C   P2           ERR! / 450W "))
    assert (finding.status, finding.reason) == (Status.UNKNOWN, "nvidia-smi says ERR! for its power draw")


@pytest.mark.parametrize(
    ("model", "count", "status"),
    [
        ("NVIDIA H100 80GB HBM3", 8, Status.FAIL),
        ("NVIDIA B200", 1, Status.WARN),
        ("NVIDIA A100-PCIE-40GB", 4, Status.SKIP),
    ],
)
def test_links_that_are_all_inactive_are_judged_on_a_model_made_for_nvswitches(
    model: str, count: int, status: Status
) -> None:
    said = "NVML: Unable to retrieve NVLink information as all links are inActive"
    text = "".join(
        f"GPU {n}: {model} (UUID: GPU-0000000{n}-0000-0000-0000-000000000000)\n{said}\n" for n in range(count)
    )
    (links,) = [check for check in judge_all(pasted(text)).checks if check.id == "nvlink.links"]
    assert links.status is status


def test_all_inactive_after_links_that_were_up_is_a_failure() -> None:
    gpus = [f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{n}-0000-0000-0000-000000000000)\n" for n in range(2)]
    up = "".join(gpu + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18)) for gpu in gpus)
    down = "".join(f"{gpu}NVML: Unable to retrieve NVLink information as all links are inActive\n" for gpu in gpus)
    for text, code in ((up, 0), (f"$ nvidia-smi nvlink -s\n{up}$ nvidia-smi nvlink -s\n{down}", 1)):
        assert judge_all(pasted(text)).exit_code == code


def test_a_fan_that_says_err_is_no_pass() -> None:
    (finding,) = bad("reported.failures", err_row("ERR!   47C    P2             99W /  450W "))
    assert (finding.status, "ERR! for the fan of GPU" in (finding.reason or "")) == (Status.UNKNOWN, True)


def test_what_was_not_read_of_a_gpu_hides_nothing_that_was_found_of_it() -> None:
    remap = "    Remapped Rows\n        Pending : Yes\n        Remapping Failure Occurred : No\n"
    cut = "Attached GPUs : 4\nGPU 00000000:3B:00.0\n    Product Name : NVIDIA A100-SXM4-80GB\n    ECC Errors\n"
    report = judge_all(pasted(cut + "        Volatile\n            SRAM Uncorrectable : 0\n" + remap))
    (waits,) = [f for check in report.checks for f in check.findings if f.status is Status.WARN]
    assert (present(waits.found).text, waits.explained_by) == ("row remap waits for a reset", None)


def test_flags_of_remapped_rows_come_as_words_or_numbers() -> None:
    head = "gpu_bus_id, gpu_uuid, remapped_rows.uncorrectable, remapped_rows.pending, remapped_rows.failure\n"
    rows = "00000000:07:00.0, GPU-1, 0, 0, 0\n00000000:0A:00.0, GPU-2, 2, {}, {}\n"
    (finding,) = bad("gpu.memory-repair", head + rows.format(0, 1))
    assert (finding.status, finding.subject.bus_id) == (Status.FAIL, "0000:0a:00.0")
    assert [f.found for f in bad("gpu.memory-repair", head + rows.format("No", "Yes"))] == [finding.found]


def test_a_module_that_starts_no_gpu_is_not_called_missing() -> None:
    text = (
        f"$ lspci\n{BUS}$ nvidia-smi\nNVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
        "$ dmesg\n[    1.500000] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
        "[    1.600000] nvidia: probe of 0000:c7:00.0 failed with error -1\n"
    )
    (finding,) = bad("driver.loaded", text)
    assert "starts no GPU: the GPU has no valid memory window" in present(finding.found).text


def test_a_contained_memory_error_warns_until_the_gpu_says_that_no_row_waits() -> None:
    finds(
        bad("gpu.xid", "[    5.500000] NVRM: Xid (PCI:0000:07:00): 94, pid=7, name=a, Contained: SM (0x1)\n"),
        Status.WARN,
    )


@pytest.mark.parametrize("mark", ["> ", "> > ", ">> ", ">>> "])
def test_mails_in_mails_hide_nothing(mark: str) -> None:
    line = "May 02 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:0a:00): 61, pid=1455, 0cec(3098) 00000000\n"
    (finding,) = bad("gpu.xid", f"Bob wrote:\n{mark}Here is the log\n{mark}{line}{mark}\nLooks bad.\n")
    assert (finding.status, finding.subject.bus_id) == (Status.FAIL, "0000:0a:00.0")


def test_pcie_errors_of_a_gpu_in_the_log_warn_where_no_counter_is_known() -> None:
    port = "[    5.500000] pcieport 0000:80:03.1: AER: Corrected error received: 0000:81:00.0\n"
    own = "[    5.600000] nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
    finds(bad("pcie.errors", port + own), Status.WARN, bus_id="0000:81:00.0")
    assert bad("pcie.errors", port + own.replace("nvidia", "nvme")) == []


def test_the_border_of_a_table_and_a_prompt_are_no_lines_to_name() -> None:
    node = load_node("rtx4090-4", {})
    assert pasted(f"ᐅ nvidia-smi -L\n{gpu_list(node)}").source.notes == ()
    assert pasted(table(node).partition("\n")[2]).source.notes == ()


@pytest.mark.parametrize(("given", "status"), [(8, Status.PASS), (7, Status.FAIL)])
def test_a_node_that_kubernetes_describes_is_judged_by_what_it_gives_out(given: int, status: Status) -> None:
    text = (
        f"Name:   node-3\nRoles:  <none>\nCapacity:\n  nvidia.com/gpu:  8\nAllocatable:\n  nvidia.com/gpu:  {given}\n"
    )
    finds(judge("reported.failures", pasted(text)).findings, status, f"{given} of 8 GPUs of the node are given out")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "+-----  Hardware  ------+--------+\n| GPU Memory | Pass - GPU: 1 |\n|   | Fail - GPU: 0 |\n",
            "GPU Memory (GPU: 0)",
        ),
        ("| GPU Memory        | Fail - GPU: 0 |\n", "Fail: GPU Memory (GPU: 0)"),
        (
            "| Overall Health  | Failure |\n| -> 0  | Failure |\n|    -> NVLINK system | Failure |\n",
            "GPU 0 NVLINK system",
        ),
        ("ERROR: GetCaptureBufferSize failed, GPU is lost, bufSize: 0x0\n", "GPU is lost"),
        ("RuntimeError: No CUDA GPUs are available\n", "No CUDA GPUs are available"),
        ("Check failed: error == cudaSuccess (46 vs. 0)  all CUDA-capable devices are busy\n", "(46 vs. 0)"),
        ("ibpanic: [1323] main: stat of IB device 'mlx5_8' failed: No such file or directory\n", "mlx5_8"),
        ("ERROR [15:16] [[Health]] Detected a WARNING in health system Thermal: 'violation in GPU 2'\n", "GPU 2"),
        (
            "    vGPU Software Licensed Product\n        Product Name  : vCS\n        License Status : Unlicensed\n",
            "licence",
        ),
        ("    GRID Licensed Product\n        Product Name  : vCS\n        License Status : Expired (x)\n", "Expired"),
    ],
)
def test_a_part_of_a_tools_text_that_reports_a_failure_is_no_pass(text: str, told: str) -> None:
    assert judge_all(pasted(text)).verdict in ("warn", "fail")
    assert told in " ".join(text_of(finding) for finding in bad("reported.failures", text))
    assert "vCS" not in {known(gpu.name) for gpu in pasted(text).gpus}, "the licence's name is not the GPU's"


@pytest.mark.parametrize(
    "text",
    [
        "# nvidia-smi\nbash: nvidia-smi: command not found\n",
        "$ nvidia-smi\nzsh: command not found: nvidia-smi\n",
    ],
)
def test_a_machine_without_nvidia_smi_warns(text: str) -> None:
    """A container that was given no GPU has no nvidia-smi either: a warning, and no failure of the node."""
    finds(bad("reported.failures", text), Status.WARN, "command not found")


def test_a_lost_gpu_in_the_middle_of_a_sentence() -> None:
    quoted = f"After some hours of training, GPU 1 is gone and nvidia-smi prints the following error: {LOST}"
    (finding,) = bad("gpu.lost", f"{quoted}\nGPU 0: A (UUID: GPU-1) GPU 1: A (UUID: GPU-2)\n")
    assert (finding.status, finding.subject.label) == (Status.FAIL, "GPU 0000:c7:00.0")
    assert [gpu.name for gpu in pasted("GPU 0: A (UUID: GPU-1) GPU 1: A (UUID: GPU-2)\n").gpus] == ["A", "A"]


def test_a_driver_that_does_not_answer_in_the_middle_of_a_sentence() -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
    (finding,) = bad(
        "driver.loaded", f"Since last week the container has the card, and running the tool in it: {said}.\n"
    )
    assert finding.status is Status.FAIL


def test_what_syslogd_writes_to_all_terminals_is_of_the_kernel() -> None:
    text = "".join(
        f"Message from syslogd@n7 at Feb  3 04:05:06 ...\n kernel:[Hardware Error]: {words}\n\n"
        for words in (
            "MC2 Error (node 0): DRAM ECC error detected.",
            "Error Status: Corrected error, no action required.",
        )
    )
    finds(bad("host.kernel", text), Status.WARN, "machine checks")


HEAD = "| NVIDIA-SMI 540.4.0      Driver Version: 540.4.0      CUDA Version: 12.6     |\n"
ROW = "|   0  Tesla T4            On   | 00000000:02:00.0 Off |                    0 |\n"
ROW_2 = "| N/A   27C    P8    16W /  70W |      0MiB / 15360MiB |      0%      Default |\n"


def test_a_table_whose_gpus_cannot_be_read_is_no_pass() -> None:
    orin = "|   0  Orin (nvgpu)                 N/A  | N/A              N/A |                  N/A |\n"
    finds(bad("gpu.count", HEAD + orin), Status.UNKNOWN, "Orin (nvgpu)")
    assert bad("gpu.count", HEAD + ROW + ROW_2) == []


def test_the_border_of_a_pane_beside_a_table() -> None:
    paned = "".join(line + " " * 20 + "\u2502\n" for line in (HEAD + ROW + ROW_2).splitlines())
    assert pasted(paned).gpus == pasted(HEAD + ROW + ROW_2).gpus
    assert len(pasted(paned).gpus) == 1


def links(*states: str) -> str:
    lines = "".join(f"\t Link {n}: {state}\n" for n, state in enumerate(states))
    return f"GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-1)\n{lines}"


def test_links_that_are_down_on_the_only_gpu_shown_are_unknown() -> None:
    up, down = "25.781 GB/s", "<inactive>"
    (finding,) = bad("nvlink.links", links(up, up, up, down, up, down))
    assert (finding.status, finding.subject.gpu) == (Status.UNKNOWN, 3)
    assert bad("nvlink.links", links(up, up, up, up, up, up)) == []
    escaped = links(up, up, up, "&lt;inactive&gt;", up, "&lt;inactive&gt;")
    assert bad("nvlink.links", escaped) == [finding], "as copied from the source of a web page"
    finds(bad("nvlink.links", links(up, up, up, "<degraded>", up, up)), Status.UNKNOWN, "<degraded>")


@pytest.mark.parametrize(("count", "status"), [("", Status.UNKNOWN), ("Attached GPUs : 1\n", None)])
def test_a_fabric_in_progress_is_normal_on_the_only_gpu_of_a_machine(count: str, status: Status | None) -> None:
    block = "    Fabric\n        State  : In Progress\n        Status : N/A\n"
    gpu = f"GPU 00000000:18:00.0\n{block}" if count else block
    assert [finding.status for finding in bad("nvlink.fabric", count + gpu)] == ([status] if status else [])


@pytest.mark.parametrize(("gpus", "status"), [(8, Status.WARN), (5, Status.UNKNOWN)])
def test_one_gpu_without_nvlink_beside_a_full_mesh(gpus: int, status: Status) -> None:
    names = [f"GPU{i}" for i in range(gpus)]
    rows = "".join(
        f"{a}\t" + "\t".join("X" if a == b else "SYS" if "GPU2" in (a, b) else "NV18" for b in names) + "\n"
        for a in names
    )
    (finding,) = bad("nvlink.topology", "\t" + "\t".join(names) + "\n" + rows)
    assert finding.status is status
    assert finding.subject.label == ("GPU 2" if status is Status.WARN else "node")


def test_a_gpu_whose_bus_id_no_text_names_is_called_and_looked_up_without_one() -> None:
    (finding,) = bad(
        "pcie.link-width",
        "index, name, pcie.link.width.current, pcie.link.width.max, pcie.link.gen.current, pcie.link.gen.max\n"
        "0, NVIDIA H100 80GB HBM3, 16, 16, 5, 5\n1, NVIDIA H100 80GB HBM3, 8, 16, 5, 5\n",
    )
    assert (finding.subject.label, finding.subject.bus_id) == ("GPU 1", None)
    assert [each.command for each in finding.advice if each.command] == ["sudo lspci -vvd 10de: | grep -i lnk"]


def test_gpus_that_nouveau_drives() -> None:
    lspci = "01:00.0 VGA compatible controller: NVIDIA Corporation GM204 [GeForce GTX 970] (rev a1)\n"
    (finding,) = bad("driver.loaded", f"{lspci}\tKernel driver in use: nouveau\n\tKernel modules: nouveau, nvidia\n")
    assert (finding.status, "nouveau drives the GPUs" in text_of(finding)) == (Status.FAIL, True)
    assert bad("driver.loaded", f"{lspci}\tKernel driver in use: nvidia\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "n1:12:34 [0] NCCL INFO Bootstrap : Using eth0",
        "sh: 1: nvidia-smi: not found",
        'exec failed: "nvidia-smi": executable file not found in $PATH',
        "8 GPUs found.",
        "RuntimeError: CUDA error: unknown error",
    ],
)
def test_a_line_of_another_program_divides_no_text(line: str) -> None:
    ill = ROW.replace("  0 |\n", "  7 |\n")
    (finding,) = bad("gpu.ecc", f"{HEAD}{ill}{line}\n{ROW_2}{ROW.replace('0  Tesla', '1  Tesla').replace('02', '03')}")
    assert (finding.status, finding.subject.gpu) == (Status.FAIL, 0)
    lost = "".join(
        f"[{hour * 3600 + 9}.000000] mlx5_core 0000:0c:00.0 ib0: Link {state}\n"
        for hour in range(0, 16, 2)
        for state in ("down", "up")
    )
    rows = lost.splitlines(keepends=True)
    assert bad("network.adapters", "".join((*rows[:8], f"{line}\n", *rows[8:]))) == bad("network.adapters", lost) != []


def information(bus: str, excluded: str = "No") -> str:
    return (
        "Model: \t\t NVIDIA L4\nIRQ:   \t\t 9\nVideo BIOS: \t 95.04.29.00.01\nBus Type: \t PCIe\n"
        f"Bus Location: \t 0000:{bus}:00.0\nDevice Minor: \t 1\nGPU Excluded:\t {excluded}\n"
    )


ROWS = HEAD + ROW + ROW_2 + (ROW + ROW_2).replace("|   0  Tesla", "|   1  Tesla").replace("02:00.0", "03:00.0")
ON_BUS = "".join(f"0{n}:00.0 3D controller: NVIDIA Corporation TU104GL [Tesla T4] (rev a1)\n" for n in (2, 3, 4))
DISCOVERED = "| GPU ID | Device Information                |\n" + "".join(
    f"| {n}      | Name: Tesla T4                    |\n|        | PCI Bus ID: 00000000:0{n + 2}:00.0      |\n"
    for n in range(3)
)


@pytest.mark.parametrize(
    "more",
    [
        "".join(map(information, ("02", "03", "04"))),
        DISCOVERED,
        "# gpu   pwr gtemp mtemp\n    0    70    35    40\n    1    70    35    40\n    2    70    35    40\n",
        "".join(transcripts.dcgm_exporter(n, GPU_TEMP=30).replace("0000:1", "0000:0") for n in range(3)),
    ],
    ids=["information", "discovery", "dmon", "exporter"],
)
def test_a_gpu_that_nvidia_smi_does_not_list_is_not_shown(more: str) -> None:
    finds(bad("gpu.count", f"$ lspci\n{ON_BUS}$ cat\n{more}$ nvidia-smi\n{ROWS}"), Status.FAIL, bus_id="0000:04:00.0")
    finds(
        bad("reported.failures", f"$ cat\n{more}$ nvidia-smi\n{ROWS}"), Status.UNKNOWN, "which nvidia-smi does not list"
    )


def test_a_gpu_that_the_module_excludes_warns() -> None:
    text = f"$ cat\n{''.join(map(information, ('02', '03')))}{information('04', 'Yes')}$ nvidia-smi\n{ROWS}"
    finds(bad("gpu.count", f"$ lspci\n{ON_BUS}{text}"), Status.WARN, bus_id="0000:04:00.0")
    assert judge_all(pasted(text)).exit_code == 0


def test_processes_are_given_to_no_gpu_that_only_a_count_names() -> None:
    node = pasted(f"{ROWS}\ngpu_uuid, pid, used_gpu_memory [MiB]\nGPU-1111aaaa-2222, 4711, 15000 MiB\n")
    assert [known(gpu.processes) for gpu in node.gpus] == [None, None]
    assert "GPU-1111aaaa-2222" in " ".join(node.source.notes)


HEALTHY = "| Health Monitor Report    |\n+=========+=========+\n| Overall Health | Healthy  |\n+---------+---------+\n"
SICK = HEALTHY.replace("Healthy", "Failure") + "| GPU 2  | Failure |\n"
DIAG_FAIL = "| Diagnostic   | Result  |\n+=========+=========+\n| {} | Fail - GPU: 2 |\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEALTHY + DIAG_FAIL.format("PCIe"), "Fail: PCIe"),
        (HEALTHY + "| PCIe     | Fail - GPU: 2 |\n", "Fail: PCIe"),
        (DIAG_FAIL.format("PCIe").replace("Fail - GPU: 2", "Pass") + SICK, "Failure: GPU 2"),
        ("| GPU instances:              |\n| 0  MIG 1g.5gb  19  7  4:1 |\n" + SICK, "Failure: GPU 2"),
        ("| AMD-SMI 24.6 |\n| 0  60C |\n" + DIAG_FAIL.format("pcie"), "Fail: pcie"),
        ("| HL-SMI Version: 1.1 |\n| 0  60C |\n" + SICK, "Failure: GPU 2"),
        (DISCOVERED + SICK, "Failure: GPU 2"),
        (DISCOVERED + "| PCIe     | Fail - GPU: 2 |\n", "Fail: PCIe"),
    ],
)
def test_a_table_that_follows_another_one_is_read(text: str, told: str) -> None:
    finds(bad("reported.failures", text), Status.FAIL, told, gpu=2)


@pytest.mark.parametrize(
    ("mode", "needed"), [("None", False), ("Pass-Through", False), ("Host VGPU", False), ("VGPU", True), ("N/A", True)]
)
def test_a_licence_is_missed_by_a_vgpu_only(mode: str, needed: bool) -> None:
    gpu = (
        "GPU 00000000:18:00.0\n    Product Name  : NVIDIA L4\n    GPU Virtualization Mode\n"
        f"        Virtualization Mode  : {mode}\n    vGPU Software Licensed Product\n"
        "        Product Name  : vCS\n        License Status : Unlicensed (Expiry: N/A)\n"
        "    Temperature\n        GPU Current Temp : 40 C\n"
    )
    inner = f"<virtualization_mode>{mode}</virtualization_mode><license_status>Unlicensed</license_status>"
    xml = f'<nvidia_smi_log><gpu id="00000000:18:00.0">{inner}</gpu></nvidia_smi_log>'
    for text in (f"Attached GPUs : 1\n{gpu}", xml):
        assert any("licence" in each.text for each in pasted(text).reported) is needed


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("    gpuId 0:\n        U U U U\nNvSwitches:\n    physicalId 10:\n        U U D U\n", "link 2 of NVSwitch 10"),
        ("        U U D U\n    gpuId 1:\n        U U U U\n", "does not name: U U D U"),
    ],
)
def test_links_of_a_switch_or_of_no_gpu_are_no_pass(rows: str, told: str) -> None:
    finds(bad("reported.failures", rows), Status.UNKNOWN, told)
    well = rows.replace("D", "U")
    assert told not in " ".join(text_of(finding) for finding in bad("reported.failures", well))


def test_a_table_in_a_string_of_json_hides_nothing_that_is_said_beside_it() -> None:
    rows = ["| Diagnostic  | Result        |", "+=============+===============+", "| PCIe        | Pass - All    |"]
    rows += ["| GPU Memory  | {} |", "| Diagnostic  | Pass - All    |"]
    table = "\\n".join(rows)
    failed = '  "raw_output": "Successfully ran\\n' + table.format("Fail - GPU: 1") + '",\n'
    assert judge_all(pasted(failed)).verdict != "pass"
    beside = '[{"gpu": 3, "status": "FAIL", "smi": "' + table.format("Pass - All   ") + '"}]\n'
    finds([f for f in bad("reported.failures", beside) if f.status is Status.FAIL], Status.FAIL, gpu=3)
    for text in (table.format("Fail - GPU: 1"), gpu_list(load_node("hgx-h100-8")).replace("\n", "\\n")):
        (finding,) = bad("reported.failures", f'{{"msg": "{text}"}}\n')
        assert (finding.status, "in a string" in (finding.reason or "")) == (Status.UNKNOWN, True)


def test_two_rows_with_one_bus_id_are_two_gpus() -> None:
    text = err_row(" N/A  ERR! P8             ERR! / ERR! ").replace("00000000:21:00.0", "00000000:01:00.0")
    (finding,) = bad("gpu.lost", text)
    assert finding.subject.gpu == 1
    assert len(pasted(text).gpus) == len(load_node("rtx4090-4", {}).gpus)


def test_links_of_a_card_without_a_bridge_are_down_and_well() -> None:
    down = re.sub(r"\bU\b", "D", transcripts.DCGM_NVLINK)
    cards = "".join(f"GPU {n}: NVIDIA H100 PCIe (UUID: GPU-{n}1111111-2222-3333-4444-555555555555)\n" for n in (0, 1))
    assert judge_all(pasted(f"{cards}$ dcgmi nvlink -s\n{down}")).exit_code == 0
    assert judge_all(pasted(f"{cards.replace('PCIe', '80GB HBM3')}$ dcgmi nvlink -s\n{down}")).exit_code == 1
    assert judge_all(pasted(down)).exit_code == 3, "whether its model has links is not known"


@pytest.mark.parametrize(
    "prose", ["        see what this node wrote/said here", "my cluster has about ten% of that"], ids=["free", "df"]
)
def test_prose_like_a_head_of_free_or_df_divides_no_table(prose: str) -> None:
    text = ROWS.replace(ROW_2, f"{ROW_2}{prose}\n", 1).replace("  0 |\n", "  7 |\n", 1)
    finds(bad("gpu.ecc", text), Status.FAIL, gpu=0)


def test_xml_in_one_line_keeps_its_entities() -> None:
    xml = (
        '<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:18:00.0"><product_name>A &amp; B</product_name></gpu>'
    )
    (gpu,) = pasted(f"{xml}</nvidia_smi_log>\n").gpus
    assert gpu.name == "A & B"


def test_what_follows_device_query_is_not_a_part_of_it() -> None:
    query = "./deviceQuery Starting...\n\nDetected 4 CUDA Capable device(s)\n  Maximum Sizes  1D=(7)\nResult = PASS\n"
    finds(bad("nvlink.topology", query + MATRIX.format(odd="NV6")), Status.FAIL)
    memory = "               total        used        free\nMem:           31744       12288        5530\n"
    assert known(pasted(f"{query}{memory}").host.ram_mib) == 31744


def test_samples_with_other_columns_and_processes_add_to_those_of_dmon() -> None:
    hot = "# gpu   pwr gtemp mtemp\n# Idx     W     C     C\n    0    70    99   108\n"
    for more in ("# gpu    sm   mem   enc   dec\n    0     7     0     0     0\n", transcripts.PMON):
        gpu = pasted(hot + more).gpus[0]
        assert (gpu.thermal.gpu_c, gpu.power.draw_w) == (99, 70)
        assert gpu.utilization.gpu_pct == 7 or bool(known(gpu.processes))


def test_metrics_of_several_nodes_are_no_pass() -> None:
    one = transcripts.dcgm_exporter(0, ROW_REMAP_FAILURE=1)
    other = transcripts.dcgm_exporter(0, ROW_REMAP_FAILURE=0)
    assert judge_all(pasted(one)).exit_code == 1
    for text in (one + other.replace("GPU-1", "GPU-9"), (one + other).replace("gpu=", 'Hostname="a",gpu=', 1)):
        report = judge_all(pasted(text))
        assert report.exit_code == 3
        assert "several nodes" in text_of(bad("reported.failures", text)[0])


def test_a_metric_with_an_exponent_keeps_its_size() -> None:
    (gpu,) = pasted(transcripts.dcgm_exporter(0, ECC_SBE_VOL_TOTAL=7).replace(" 7\n", " 2.5e+06\n")).gpus
    assert gpu.ecc.corrected_volatile == 2_500_000


def test_an_error_of_cuda_is_reported_once() -> None:
    (each,) = pasted("RuntimeError: CUDA error: no CUDA-capable device is detected\n" * 3).reported
    assert (each.label, each.count) == ("gpu_isolated", 3)


def test_a_line_with_very_many_blanks_is_read() -> None:
    many = " " * 200_000
    host = pasted(f"available: 1 nodes (0)\nnode 0 cpus: 0 1{many}2\nnode 0 size: 4096 MB\n").host
    assert host.cpus_total == 3
    assert pasted(f"  allocatable:{many}x\n{gpu_list(load_node('rtx4090-4', {}))}").reported == ()


BURN = "100.0%  proc'd: {} Gflop/s)   errors: {}   temps: 61 C - 60 C \nKilling processes.. done\n\nTested 2 GPUs:\n"
# the program counts anew after each line
WRONG_ONCE = BURN.format("9 (99 Gflop/s) - 9 (98", "0 - 3  (WARNING!)") + BURN.format("9 (99 Gflop/s) - 9 (98", "0 - 0")
SLOW = (
    "Unidirectional P2P={}abled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n     0 911.08  {}\n     1  {} 920.20\n"
)
COPIES = (
    "[CUDA Bandwidth Test] - Starting...\n Host to Device Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n"
    "   Transfer Size (Bytes)        Bandwidth(MB/s)\n   33554432                     {}\n\n"
    " Device to Device Bandwidth, 1 Device(s)\n   33554432                     1000.5\n"
)
PODS = "NAME   READY   STATUS   RESTARTS   AGE\npod/web-1   0/1   Error   3   5d\npod/nvidia-driver-x7   {}   18m\n"
ACS = "\t\tACSCtl: SrcValid{} TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"
FULL = (
    "Filesystem      Size  Used Avail Use% Mounted on\n/dev/sda2  440G  {} {}\n/dev/loop3  64M  64M  0 100% /snap/a/1\n"
)
TORCH = "PyTorch version: 2.1.0+cu118\nCUDA used to build PyTorch: 11.8\nIs CUDA available: {}\n"
NCCL = "n7:420:437 [5] transport/nvls.cc:379 (nvlsAllocate) NCCL {}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BURN.format("0 (0 Gflop/s) - 0 (0", "0 - 0") + "\tGPU 0: OK\n\tGPU 1: OK\n", "GPU 0-1 of 2 computed nothing"),
        (BURN.format("9 (99 Gflop/s) - 9 (98", "0 - -524288  (WARNING!)"), "GPU 1 computed wrongly"),
        (WRONG_ONCE, "GPU 1 computed wrongly"),
        (WRONG_ONCE.replace("3  (WARNING!)", "-1  (DIED!)"), "the process of GPU 1 died"),
        ("Tested 2 GPUs:\n\tGPU 0: FAULTY\n\tGPU 1: FAULTY\n", "GPU 1 is FAULTY"),
        ("Couldn't init a GPU test: Error: CUDA_ERROR_UNKNOWN\n", "Couldn't init a GPU test"),
        (BURN.format("9 (99 Gflop/s) - 9 (98 Gflop/s) - 4 (44", "0 - 0 - 0"), "GPU 2 computed at less than 60%"),
        (SLOW.format("Dis", 22, 22) + SLOW.format("En", 10, 10), "10 GB/s with peer to peer, 22 without"),
        (COPIES.format("3783.4"), "host to device 3.8 GB/s"),
        (PODS.format("0/1   CrashLoopBackOff   7"), "nvidia-driver-x7: 0/1 CrashLoopBackOff"),
        (PODS.format("0/1   Running   32"), "nvidia-driver-x7: 0/1 Running"),
        (PODS.format("0/1   Init:0/1   0"), "nvidia-driver-x7: 0/1 Init:0/1"),
        (PODS.format("0/1   Running   3 (8m ago)"), "nvidia-driver-x7: 0/1 Running"),
        (NCCL.format("WARN Cuda failure 3 'initialization error'"), "initialization error"),
        (NCCL.format("WARN Cuda failure 401 'the operation cannot be performed in the present state'"), "failure 401"),
        (ACS.format("+") + ACS.format("-"), "ACS is on (SrcValid+) in 1 of 2 functions"),
        (FULL.format("440G  0 100%", "/"), "no space is left on /"),
        (FULL.format("440G  12M 100%", "/var/lib/docker"), "no space is left on /var/lib/docker"),
        (TORCH.format("False"), "PyTorch is built with CUDA 11.8"),
        (NCCL.format("WARN Failed to bind NVLink SHARP (NVLS) memory : CUDA error 401"), "NVLink SHARP"),
        (
            "May 23 12:49:52 m slurmctld[8]: slurmctld: error: Setting node n7 state to INVAL with reason:x\n",
            "n7 state",
        ),
        ("Job for nvidia-persistenced.service failed because the control process exited\n", "nvidia-persistenced"),
        ("Fatal: call to cuInit returned error 214\n", "cuInit returned error 214"),
        ("  (CUDA_ERROR_ECC_UNCORRECTABLE): uncorrectable ECC error encountered\n", "(CUDA_ERROR_ECC_UNCORRECTABLE)"),
        ("step 9 died: cudaErrorNvlinkUncorrectable\n", "step 9 died"),
        ("[n7] torch: CUDA initialization: Error 802: system not yet initialized\n", "Error 802"),
        ("E0101 driver.cc:9] cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\n", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    ],
)
def test_what_a_tool_says_is_wrong_is_named_and_passes_nothing(text: str, told: str) -> None:
    memory = "               total        used        free\nMem:           31744       12288        5530\n"
    for shown in (text, f"{text}\n$ free -m\n{memory}Swap:              0           0           0\n"):
        report = judge_all(pasted(shown))
        assert report.verdict in ("warn", "fail")
        assert told in " ".join(text_of(finding) for finding in bad("reported.failures", shown))


def test_what_breaks_the_node_fails_and_what_may_be_the_jobs_warns() -> None:
    def status(text: str) -> str:
        return judge_all(pasted(text)).verdict

    assert status(BURN.format("9 (99 Gflop/s) - 9 (98", "0 - 7  (WARNING!)")) == "fail"
    assert status("step 9 died: cudaErrorNvlinkUncorrectable\n") == "fail"
    assert status(PODS.format("0/1   CrashLoopBackOff   7")) == "fail"
    assert status(PODS.format("0/1   Running   32")) == "warn"
    assert status("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has 80 GiB\n") == "warn"
    assert status("RuntimeError: No CUDA GPUs are available\n") == "warn"


@pytest.mark.parametrize(
    "text",
    [
        "1.0%  proc'd: 0 (0 Gflop/s)   errors: 0   temps: 41 C\n"
        + BURN.format("9 (99 Gflop/s) - 9 (98", "0 - 0")
        + "\tGPU 0: OK\n\tGPU 1: OK\n",
        SLOW.format("Dis", 22, 22) + SLOW.format("En", 45, 45),
        COPIES.format("12150.7"),
        COPIES.format("6.2").replace("MB/s", "GB/s"),
        COPIES.format("4.4").replace("MB/s", "GB/s").replace("PINNED", "PAGEABLE"),
        COPIES.format("410.5").replace("33554432 ", "1024000 "),
        PODS.format("1/1   Running   0"),
        PODS.format("0/1   ContainerCreating   0").replace("18m", "5s"),
        PODS.format("0/1   Running   0").replace("18m", "2m30s"),
        PODS.format("1/1   Running   0") + "my-gpu-training-0   0/1   Pending   0   5d\ngpu-book-1 0/1  Error  0  5d\n",
        ACS.format("-"),
        FULL.format("40G  400G 10%", "/") + "/dev/sdb1  9T  9T  0 100% /data/imagenet\n",
        FULL.format("438G  2.0G 100%", "/home"),
        FULL.format("440G  0 100%", "/tmp/.mount_toolAb1"),
        FULL.format("440G  0 100%", "/run/media/me/Stick"),
        FULL.format("440G  0 100%", "/run/credentials/systemd-sysctl.service"),
        TORCH.format("True"),
        TORCH.format("False").replace("11.8", "None"),
    ],
)
def test_what_a_tool_says_is_well_is_no_failure(text: str) -> None:
    assert [each for each in pasted(text).reported if each.loudness != "ok"] == []


@pytest.mark.parametrize(
    "text",
    [
        "[2026-03-02T08:00:00] slurmctld: Setting node n7 state to IDLE\n",
        NCCL.format("INFO NVLS multicast support is available on dev 0"),
        NCCL.format("WARN Failed to open libibverbs.so[.1]"),
        "srun: error: Unable to allocate resources: Requested node configuration is not available\n",
        "# Notes\n\nIf a GPU falls off the bus, reboot. What would I do then?\n",
    ],
)
def test_what_is_no_news_of_a_node_is_refused_with_what_to_paste(text: str) -> None:
    with pytest.raises(SourceError, match=r"nvidia-smi -q, .*gpudoctor diagnose FILE"):
        pasted(text)


STAMP = "Jul 01 11:00:05 dgx2 "
FM = "systemd[1]: {} nvidia-fabricmanager.service - NVIDIA fabric manager service"
JOB = "Job for nvidia-fabricmanager.service failed because the control process exited with error code.\n"


@pytest.mark.parametrize(
    "end", [FM.format("Stopping"), 'nvidia-fabricmanager-start.sh[7]: Stopped "Nvidia Fabric Manager"']
)
def test_a_fabric_manager_that_is_being_stopped_does_not_run(end: str) -> None:
    started = "".join(f"{STAMP}{FM.format(word)}\n" for word in ("Starting", "Started"))
    assert bad("driver.fabric-manager", started) == []
    finds(bad("driver.fabric-manager", f"{started}{STAMP}{end}\n"), Status.WARN)


@pytest.mark.parametrize(
    "driver", ["", "$ nvidia-smi\n| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: 12.2     |\n"]
)
def test_a_fabric_manager_that_refuses_the_driver_in_a_line_that_is_cut_off_fails(driver: str) -> None:
    line = f"{STAMP}nv-fabricmanager[77]: fabric manager NVIDIA GPU driver interface version 535.104.05 don'\n"
    finds(bad("driver.fabric-manager", line + driver), Status.FAIL, "fabric manager 535.104.05, driver")


def test_a_fabric_manager_that_systemd_could_not_start_is_named() -> None:
    started = "".join(f"{STAMP}{FM.format(word)}\n" for word in ("Starting", "Started"))
    finds(bad("driver.fabric-manager", JOB + started), Status.WARN, "Job for")
    # the month in another language; no NVSwitch there
    why = "nv-fabricmanager[7]: query failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
    finds(bad("driver.fabric-manager", f"11月 15 14:15:47 n7 {why}\n"), Status.UNKNOWN, "no NVSwitch")
    # nothing needs it between GeForce cards
    assert judge_all(pasted(f"{JOB}{gpu_list(load_node('rtx4090-4', {}))}")).verdict == "pass"


ACTIVE = "$ systemctl is-active nvidia-fabricmanager\nactive\n"


def test_a_fabric_manager_that_was_started_in_the_end_runs() -> None:
    assert bad("driver.fabric-manager", f"$ systemctl start nvidia-fabricmanager\n{JOB}{ACTIVE}") == []
    assert bad("driver.fabric-manager", f"{ACTIVE}$ systemctl restart nvidia-fabricmanager\n{JOB}") != []
    script = STAMP + 'nvidia-fabricmanager-start.sh[7]: {} "Nvidia Fabric Manager"\n'
    assert bad("driver.fabric-manager", script.format("Stopped") + script.format("Started")) == []


def test_a_container_that_shows_its_gpus_after_all_is_no_failure() -> None:
    refused = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n'
    listed = gpu_list(load_node("rtx4090-4", {}))
    run = f"$ docker run --rm --gpus all ubuntu nvidia-smi -L\n{listed}"
    assert bad("driver.loaded", f"{refused}$ nvidia-smi -L\n{listed}") != []
    assert bad("driver.loaded", f"{run}{refused}") != []
    assert bad("driver.loaded", f"{refused}$ apt-get install -y nvidia-container-toolkit\n{run}") == []


@pytest.mark.parametrize(
    "stamp", ["Okt 15 14:15:47 n7 ", "11月 15 14:15:47 n7 ", "févr. 05 14:15:47 n7 ", "Feb 23 03:28:16  "]
)
def test_a_log_in_another_language_or_without_its_host_is_read(stamp: str) -> None:
    line = XID_79.splitlines()[0].partition("] ")[2]
    finds(bad("gpu.xid", f"{stamp}kernel: {line}\n"), Status.FAIL, bus_id="0000:c7:00.0")


_LINK_DOWN = "GPU {0}GPU {0}'s NvLink link {1} is currently down Run a field diagnostic on the GPU., "


@pytest.mark.parametrize(
    ("links", "more", "status"),
    [
        (((0, 0), (0, 1), (0, 2)), "", Status.UNKNOWN),
        (((0, 0), (0, 1), (1, 0), (1, 1)), "", Status.UNKNOWN),
        (((0, 0), (0, 1)), "GPU 0 has fallen off the bus", Status.FAIL),
        (((0, 0), (0, 1), (1, 5)), "", Status.FAIL),
        (((0, 0), (0, 2)), "", Status.FAIL),
        (((0, 7),), "", Status.FAIL),
    ],
)
def test_nvlinks_that_dcgm_calls_down_from_the_first_on_may_be_of_a_board_without(
    links: tuple[tuple[int, int], ...], more: str, status: Status
) -> None:
    words = "".join(_LINK_DOWN.format(gpu, link) for gpu, link in links) + more
    rows = "".join(f"| {'Warning':9} | {words[at : at + 46]:46} |\n" for at in range(0, len(words), 46))
    text = "+---- Integration ----+----+\n| {}      | Fail - All                                     |\n" + rows
    findings = bad("reported.failures", text.format("PCIe"))
    assert {finding.status for finding in findings} == {status}
    assert bad("reported.failures", text.format("SMs ")).pop().status is not Status.UNKNOWN


def test_mig_that_is_on_without_a_list_of_instances_is_no_finding() -> None:
    row = "pci.bus_id, mig.mode.current\n00000000:01:00.0, Enabled\n"
    for text in (row, "".join(f"+    {line}\n" for line in row.splitlines())):  # as a diff adds it
        node = pasted(text)
        assert known(node.gpus[0].settings.mig_enabled) is True
        assert bad("gpu.settings", text) == []


def test_the_word_of_old_drivers_for_another_socket_is_sys() -> None:
    (pair,) = known(pasted("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-5\nGPU1\tSOC\t X \t6-11\n").pairs) or ()
    assert known(pair.path) == "SYS"


def test_a_corrupted_inforom_is_found_in_a_sentence() -> None:
    text = "It printed ``WARNING: infoROM is corrupted at gpu 0000:00:1E.0`` and went on\n$ lspci\n"
    (finding,) = bad("gpu.inforom", text)
    assert finding.subject.bus_id == "0000:00:1e.0"
    assert bad("gpu.inforom", f"what does infoROM is corrupted at gpu mean?\n{BUS}") == []
    story = f"last year the infoROM is corrupted at gpu 0000:1a:00.0 was what n9 said\n$ lspci\n{BUS}"
    assert bad("gpu.inforom", story) == [], "of which node it speaks is not known"
    (told,) = pasted(story).reported
    assert (told.bus_id, told.text) == ("0000:1a:00.0", story.partition("\n")[0])
    assert judge_all(pasted(story)).verdict == "warn"


def test_ports_without_indentation_are_ports() -> None:
    text = "CA 'mlx5_0'\nCA type: MT4129\nPort 1:\nState: Down\nPhysical state: Polling\nLink layer: InfiniBand\n"
    (port,) = known(pasted(text).network.rdma_ports) or ()
    assert (port.state, port.physical_state) == ("DOWN", "Polling")


def test_files_of_a_port_with_their_paths_are_a_port() -> None:
    root = "/sys/class/infiniband/mlx5_{}/ports/1"
    files = {"state": "{}", "rate": "200 Gb/sec (4X HDR)", "phys_state": "{}"}
    words = [("4: ACTIVE", "5: LinkUp"), ("1: DOWN", "2: Polling")]
    text = "".join(
        f"{root.format(number)}/{name}:{value.format(words[number][name != 'state'])}\n"
        for name, value in files.items()
        for number in range(2)
    )
    up, down = known(pasted(text).network.rdma_ports) or ()
    assert (up.device, up.state, up.physical_state, up.rate_gbit_s) == ("mlx5_0", "ACTIVE", "LinkUp", 200)
    assert (down.device, down.state, down.physical_state) == ("mlx5_1", "DOWN", "Polling")


def test_a_matrix_with_an_editors_line_numbers_is_recognised() -> None:
    text = "  8 P2P=Enabled Latency (P2P Writes) Matrix (us)\n  9    GPU     0      1\n 10      0   2.11   1.93\n"
    assert "p2pBandwidthLatencyTest" in pasted(text).source.notes[0]


@pytest.mark.parametrize("head", ["REASON USER TIMESTAMP NODELIST\n", "This is what it says:\n```\n"])
def test_a_node_that_slurm_gives_a_reason_for_is_out_of_service(head: str) -> None:
    row = "Kill task failed root 2025-03-04T05:06:07 {}\n"
    finds(
        bad("reported.failures", head + row.format("gpu-7")), Status.WARN, "gpu-7 is down or drained: Kill task failed"
    )


def test_the_nodes_that_sinfo_shows_out_of_service_are_named() -> None:
    rows = (
        "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST",
        "gpu up 1-00 3 fail* c[020-022]",
        "gpu up 1-00 2 mix c[001-002]",
    )
    text = "".join(f"{row}\n" for row in rows)
    bare = "".join(f"{row.partition('1-00 ')[2]}\n" for row in rows[1:])
    for shown in (text, f"Half of them are gone:\n\n{bare}"):
        (finding,) = bad("reported.failures", shown)
        assert "c[020-022] is fail*" in text_of(finding)


@pytest.mark.parametrize(
    ("prose", "told"),
    [
        ("Node n7: the card is not usable, it shows an Uncorrectable ECC Error since noon.", True),
        ("11:04 operator: Xid 79 again on the third card", True),
        ("our exporter says GPU is lost for the last one", True),
        ("All well again, no uncorrectable ECC error since the swap.", False),
        ("We didn't see Xid 79 this week.", False),
        ("What would I do if the GPU has fallen off the bus?", False),
        ("11:04 Xid 31 of the user's program", False),
        ("11:04 Xid 31 of the card\n11:09 Xid 79 of the card", True),
    ],
)
def test_a_sentence_that_tells_of_a_broken_gpu_is_no_pass_of_the_rest(prose: str, told: bool) -> None:
    memory = "$ free -m\n      total  used  free\nMem:  31744  12288  5530\nSwap:     0      0     0\n"
    found = bad("reported.failures", f"{prose}\n{memory}")
    assert [finding.status in (Status.WARN, Status.FAIL) for finding in found] == ([True] if told else [])
    assert told is any(prose.splitlines()[-1][:30] in text_of(finding) for finding in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "$ uname -r\n6.8.0-45-generic\n$ dkms status\nnvidia/550.54.15, 6.8.0-44-generic, x86_64: installed\n",
            "DKMS",
        ),
        ("$ lsmod | grep nouveau\nnouveau              2707456  0\n", "nouveau is loaded"),
        (
            "● nvidia-persistenced.service - NVIDIA Persistence Daemon\n     Active: failed (Result: exit-code)\n",
            "nvidia-persistenced has failed",
        ),
    ],
)
def test_a_sign_of_a_driver_that_does_not_run_is_no_pass_of_the_rest(text: str, said: str) -> None:
    memory = "$ free -m\n      total  used  free\nMem:  31744  12288  5530\nSwap:     0      0     0\n"
    report = judge_all(pasted(text + memory))
    assert report.verdict in ("unknown", "warn")
    told = [text_of(f) for check in report.checks for f in check.findings if f.status is not Status.PASS]
    assert said in " ".join(told)
    mended = text.replace("6.8.0-44", "6.8.0-45").replace("nouveau", "video").replace("failed", "active")
    assert judge_all(pasted(mended + memory)).verdict == "pass"


def test_lspci_in_numbers_alone_shows_the_gpus_and_one_that_is_off_the_bus() -> None:
    text = "17:00.0 0302: 10de:2330 (rev a1)\n18:00.0 0604: 1000:c030 (rev b0)\n2a:00.0 0302: 10de:2330 (rev {})\n"
    assert [gpu.bus_id for gpu in pasted(text.format("a1")).gpus] == ["0000:17:00.0", "0000:2a:00.0"]
    assert bad("gpu.lost", text.format("a1")) == []
    finds(bad("gpu.lost", text.format("ff")), Status.FAIL, bus_id="0000:2a:00.0")
