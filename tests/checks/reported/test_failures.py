"""reported.failures: what a pasted text says of the node, through `gpudoctor check --node -`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.facts.captures import NotUnderstoodError, SourceError
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.report.judge import judge
from gpudoctor.report.text import render_text
from tests.checks.one_check import finds, text_of
from tests.facts.loaded_nodes import pasted
from tests.facts.transcripts import table
from tests.narrowed import present

CLEAN = table(load_node("hgx-h100-8", {}))
_UUID = "GPU-edae6d5d-6698-fb8d-2c6b-2a791224f089"


def said(text: str) -> list[Finding]:
    (result,) = [each for each in judge(pasted(text)).checks if each.id == "reported.failures"]
    return [finding for finding in result.findings if finding.status is not Status.SKIP]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("GPU 3 has fallen off the bus\n", "GPU 3"),
        (f"## GPU 3 has fallen off the bus\n\n{CLEAN}", "GPU 3 ("),
        ("> > GPU 3 has fallen off the bus, says the driver\n", "GPU 3"),
        ("* **GPU 3** has `fallen off the bus`\n", "GPU 3"),
        ("Nov 28 02:10:00 n7 monitor[77]: GPU 0000:3b:00.0: GPU is lost\n", "GPU 0000:3b:00.0"),
        (
            "[2019-07-25 07:05:13] [ERROR] [NVML] System.Exception: NVML failed with status: GPUIsLost\n",
            "node",
        ),
        ("slurmd[12912]: slurmd: fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory\n", "node"),
        ("nvidia-container-cli: initialization error: driver rpc error: failed to process request: unknown.\n", "node"),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4\n", "node"),
        ("torch/cuda/__init__.py:1: UserWarning: cuda error 802: system not yet initialized\n", "node"),
        (
            "failed to get remapped rows for GPU-ac896b35-5782-c478-4b2a-a661de07770f: ERROR_GPU_IS_LOST\n",
            "GPU GPU-ac896b35",
        ),
        ("GPU 3 of the node has fallen\noff the bus\n", "GPU 3"),
        (f"GPU 1 shows double bit errors\n\n{CLEAN}", "GPU 1 ("),
        ("GPU 1 has 12 corrected and 3 uncorrected errors\n", "GPU 1"),
        ("GPU 3 fell off the bus. It was replaced. The replacement has uncorrectable ECC errors.\n", "GPU 3"),
        ("so it is: GPU 3 has fallen off the b".rjust(80, "x") + "\nus\n", "GPU 3"),
        ("error 804: forward compatibility was attempted on non supported HW (cuda)\n", "node"),
    ],
)
def test_a_text_whose_only_news_is_a_sentence_is_judged(text: str, label: str) -> None:
    finding = next(finding for finding in said(text))
    assert (finding.status, finding.subject.label[: len(label)]) == (Status.FAIL, label)
    assert judge(pasted(text)).exit_code == 1


def test_the_sentence_is_quoted_whole_with_who_said_it_and_what_to_run() -> None:
    long = "slurmd: fatal: /dev/nvidia0 of this node " + "does not open, " * 12 + "and this is the end of it"
    (finding,) = said(f"{long}\n")
    assert present(finding.found).text == long
    assert (finding.evidence[0].source, finding.evidence[0].value) == ("line 1", "said by slurmd")
    assert any("nvidia-smi -q" in (step.command or "") for step in finding.advice)


def test_what_a_tool_says_of_each_gpu_alike_is_said_of_all_of_them() -> None:
    found = said("Tested 16 GPUs:\n" + "".join(f"\tGPU {n}: FAULTY\n" for n in range(16)))
    assert [(f.subject.gpu, f.status) for f in found] == [(n, Status.FAIL) for n in range(16)]
    many = said("".join(f"nvidia-smi: error: part {letter * 3} of the GPU is gone\n" for letter in "abcdefghijklm"))
    assert [f.status for f in many[-2:]] == [Status.FAIL, Status.UNKNOWN]


def test_a_gpu_that_does_not_respond_is_no_refused_text() -> None:
    finds(said("The third GPU of n7 becomes unresponsive within an hour\n"), Status.WARN)


def test_the_report_on_one_sentence_is_short() -> None:
    report = judge(pasted("GPU 3 has fallen off the bus\n"))
    text = render_text(report, width=100, color=False)
    assert len(text.splitlines()) <= 20
    assert "Not in this text: driver, gpu, pcie" in text
    assert "SKIP" not in text


@pytest.mark.parametrize(
    "errors", ["5 correctable ECC errors", "no ECC errors", "12 corrected and 0 uncorrected errors"]
)
def test_a_gpu_that_has_errors_of_no_harm_has_not_failed(errors: str) -> None:
    assert said(f"GPU 1 has {errors}\n\n{CLEAN}") == []


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("n1:1:2 [0] NCCL WARN Cuda failure 401 'the operation cannot be performed'\n", Status.WARN),
        ("[rank3]: torch.distributed.DistBackendError: NCCL watchdog timeout of a collective on GPU 3\n", Status.WARN),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB on GPU 1\n", Status.WARN),
        ("ERROR: GPU[0] \t\t: Unable to get GPU use.\n", Status.UNKNOWN),
        ("ERROR: Worker proc VllmWorker-3 of GPU 3 died unexpectedly, shutting down executor.\n", Status.WARN),
        # a clock that this device does not have, a call that its driver does not
        ("ERROR: GPU[0] \t\t: fclk clock is unsupported\n", Status.UNKNOWN),
        ("ERROR: 2 GPU[0]: ras: RSMI_STATUS_NOT_SUPPORTED: not of this environment\n", Status.UNKNOWN),
        ("ERROR: GPU 0: query failed: not implemented\n", Status.UNKNOWN),
        ("ERROR: GPU 0: failed to set the power limit (not implemented)\n", Status.UNKNOWN),
        # a verdict of failure stands before it
        ("GPU 3 failed: uncorrectable ECC error; recovery is unsupported\n", Status.FAIL),
        ("ERROR: GPU 0000:3b:00.0: NVLink error, link is unsupported state\n", Status.FAIL),
        ("[ERROR] GPU 2 hung, P2P not implemented\n", Status.FAIL),
        ("[ERROR] GPU 2 hung. Power: NVML_ERROR_NOT_SUPPORTED\n", Status.FAIL),
        ("[ERROR] GPU 2 hung, cannot read its power\n", Status.FAIL),
        ("GPU 5: FAIL (feature not implemented)\n", Status.FAIL),
        (
            "docker: Error response from daemon: hook 1: exit status 1, stdout: , stderr: nvidia-container-cli: "
            "initialization error\n",
            Status.FAIL,
        ),
        ("After the reboot slurmd can not run on n7. I think it may be a GPU.\n", Status.WARN),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", Status.FAIL),
        ("\t\tLnkSta:\tSpeed 5GT/s (downgraded), Width x1 (downgraded)\n", Status.WARN),
        ("dmesg has one Xid 94 on gpu1, and only that job died\n", Status.WARN),
        ("[FIRING:1] nvidia-smi: error: GPU 3 is lost\n", Status.FAIL),
        ("[FIRING:1] GpuTooHot (warning) fleet\n*Summary:* GPU 1 on n7 runs at 89 C\n", Status.WARN),
        ("$ ssh gpu-7 nvidia-smi\nssh: connect to host gpu-7 port 22: Connection timed out\n", Status.UNKNOWN),
        (" 2e2 | 03/15/2025 | 02:40:31 | Power Supply PSU3 | Power Supply AC lost | Asserted\n", Status.WARN),
        (" 2 | 03/15/2025 | 02:40:31 | Bus | Fatal error on bus 59 device 0 function 0 | Asserted\n", Status.FAIL),
    ],
)
def test_the_class_of_a_statement_decides_how_bad_it_is(text: str, status: Status) -> None:
    assert [finding.status for finding in said(text)] == [status]


def test_the_only_gpu_that_a_text_names_is_the_one_of_its_fault() -> None:
    post = (
        "**Our two hangs were caused by GPU2**\n"
        "- `dmesg` shows Xid events, all on the same GPU (PCI `0000:9c:00`, our GPU2)\n"
        "  - `Xid 48 / 171`: uncorrectable double-bit ECC (DBE) in HBM framebuffer\n"
    )
    failed = [finding for finding in said(post) if finding.status is Status.FAIL]
    assert [finding.subject.gpu for finding in failed] == [2]
    both = [finding for finding in said(post + "GPU 5 is fine.\n") if finding.status is Status.FAIL]
    assert [finding.subject.label for finding in both] == ["node"]


def test_a_record_is_judged_by_its_own_verdict_on_one_line_or_over_several() -> None:
    record = {"level": "info", "event": "probe end", "gpu": 3, "status": "failed", "detail": "no answer in 9 s"}
    several = {"n": 2, "of": [record, {"gpu": 4, "status": "ok"}]}
    for text in (json.dumps(record), json.dumps(record, indent=2), *(json.dumps(several, indent=n) for n in (None, 1))):
        (finding,) = said(f"the probe prints\n{text}\n")
        assert (finding.status, finding.subject.label) == (Status.FAIL, "GPU 3")
        assert present(finding.found).text.endswith("probe end: no answer in 9 s: status: failed")
    (counted,) = said(json.dumps({"module": "dcgm-nightly", "event": "summary of GPUs", "failed": 2}, indent=2) + "\n")
    assert counted.status is Status.FAIL
    (job,) = said(json.dumps({"job": 71, "gpu": 3, "status": "failed"}, indent=2) + "\n")
    assert job.status is Status.WARN  # a job's end is not the node's fault
    (loud,) = said('{"ts": "12:00", "severity": "ERROR", "message": "GPU 3 gave no answer"}\n')
    assert (loud.status, loud.found and loud.found.text) == (Status.FAIL, "GPU 3 gave no answer")


def test_a_record_that_is_cut_or_says_it_elsewhere_is_still_read_line_by_line() -> None:
    for text in (
        '{\n "id": 1,\n "note": "GPU 5 has fallen off the bus"\n',
        '{\n "status": "ok",\n "note": "GPU 5 has fallen off the bus"\n}\n',
        '{"level": "info", "seen": {"note": "GPU 5 has fallen off the bus"}}\n',
        '{\n "a": {\n  "gpu": 1,\n  "status": "pass"\n },\n "b": {\nGPU 5 has fallen off the bus\n',
    ):
        assert [(f.status, f.subject.gpu) for f in said(text)] == [(Status.FAIL, 5)]


def test_a_record_without_a_bad_verdict_is_no_failure() -> None:
    for record in (
        {"level": "info", "msg": "GPU 3 probe ended", "failed": 0, "status": "ok"},
        {"level": "info", "msg": "GPU 3 probe, retrying", "status": "failed"},
        {"msg": "expected failure of the GPU probe", "status": "failed"},
        {"gpu": 3, "failed": False, "result": "pass", "state": "up"},
    ):
        for text in (json.dumps(record), json.dumps([{"Error": "", **record}]), json.dumps(record, indent=2)):
            assert said(f"{CLEAN}\n{text}\n") == []


@pytest.mark.parametrize(
    ("where", "gpu"),
    [
        ("It happens on GPU 2.", 2),
        ("It only happens on GPU 2. GPU 2: Model X", 2),
        ("Only on GPU 2.", 2),
        ("It does not happen on GPU 1.", None),
        ("It happens on GPU 1 and GPU 2.", None),
        ("It happens on GPU 1, 2.", None),
        ("This happens on GPU 1. This happens on GPU 2.", None),
        ("It is fine on GPU 1.", None),
    ],
)
def test_a_sentence_of_its_own_says_on_which_gpu_it_happens(where: str, gpu: int | None) -> None:
    text = f"The node has GPU 0, GPU 1, GPU 2 and GPU 3.\n\n{where}\n\nThe card of NVIDIA hangs after some minutes.\n"
    assert [(finding.status, finding.subject.gpu) for finding in said(text)] == [(Status.WARN, gpu)]


def test_a_gpu_that_a_sentence_calls_well_is_not_the_one_that_failed() -> None:
    assert [f.subject.gpu for f in said("The card is not responding. It does not happen on GPU 1.\n")] == [None]
    assert [f.subject.gpu for f in said("A card of NVIDIA fell off the bus. GPU 1 is fine.\n")] == [None]
    assert [f.subject.gpu for f in said("GPU 1 was fine until it fell off the bus.\n")] == [1]


def test_a_gpu_that_does_not_work_is_one_in_other_words_too() -> None:
    for text in ("GPU 3 isn't responding since noon", "GPU 3 is in lspci, but not in nvidia-smi"):
        assert [(f.status, f.subject.gpu) for f in said(f"{text}\n")] == [(Status.FAIL, 3)]
    with pytest.raises(SourceError, match="not recognised"):
        pasted("the exporter of GPUs needs NVML but not nvidia-smi\n")


@pytest.mark.parametrize("text", ["nvidia-smi hangs on hopper", "Since noon nvidia-smi is stuck", "dcgmi hangs"])
def test_what_asks_the_driver_in_vain_leaves_it_unknown(text: str) -> None:
    for whole in (f"{text}\n", f"{CLEAN}\n{text}\n"):
        (finding,) = said(whole)
        assert finding.status is Status.UNKNOWN
        assert (finding.reason or "").startswith("does the driver or a GPU not answer? ")


@pytest.mark.parametrize("other", ["KO", "ERR", "not ok", "Unknown", "TIMEOUT", "-"])
def test_a_good_verdict_is_no_pass_beside_another_one_in_its_place(other: str) -> None:
    (finding,) = said(f"GPU 0: PASS\nGPU 1: PASS\nGPU 2: {other}\n")
    assert (finding.status, f"GPU 2: {other}" in (finding.reason or "")) == (Status.UNKNOWN, True)
    finds(said("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 0: PASS\nGPU 1: PASS\n"), Status.PASS)


def test_a_good_verdict_is_no_pass_beside_words_that_were_not_understood() -> None:
    (good,) = said("GPU self test: PASSED\n")
    (finding,) = said("GPU self test: PASSED\nEvery job on this box dies since noon\n")
    assert (good.status, finding.status) == (Status.PASS, Status.UNKNOWN)
    assert "Every job on this box dies" in (finding.reason or "")


_ROCM = "".join(f"GPU[{n}]          : Temperature (Sensor edge) (C): 67.0\n" for n in range(4))
_GPUSTAT = "[0] GeForce GTX 1080 Ti | 75'C, 100 % |  4335 / 11178 MB | user(645M)\n"
_NVTOP = '[\n {\n  "device_name": "AMD Radeon RX 7900 XTX",\n  "temp": "51C",\n  "gpu_util": "73%"\n }\n]\n'
_ADAPTERS = "".join(f"mlx5_{n} port 1 ==> ibp{n}s0 (Down) # no {n}\n" for n in range(3))
_NPU = "| NPU   Name    | Health  | Power(W) |\n" + "| 0     Ascend  | OK      | 163.6    |\n" * 3


@pytest.mark.parametrize(
    "text",
    [
        *(_ROCM, _NPU, _GPUSTAT, _NVTOP, f"Our adapters, with remarks.\n{_ADAPTERS}"),
        "".join(f"ib{n}    up     200G    4096\n" for n in range(3)),
    ],
)
def test_figures_of_a_tool_that_nothing_reads_are_quoted_and_not_judged(text: str) -> None:
    with pytest.raises(NotUnderstoodError, match="nothing in it is understood") as refused:
        pasted(text)
    report = judge(refused.value.node)
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    assert " ".join(text.splitlines()[-1].split()) in refused.value.node.reported[0].text


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ERROR: GPU[0] \t\t: Unable to get GPU use.\n", "amd-smi"),
        ("npu-smi: error: NPU 3 of the node is lost\n", "npu-smi info"),
        ("kernel 5.15.90.1-microsoft-standard-WSL2: error: GPU 0 is lost\n", "wsl --shutdown"),
    ],
)
def test_no_one_is_sent_to_nvidia_smi_for_what_is_not_nvidias_or_not_linuxs(text: str, command: str) -> None:
    advice = [step for finding in said(text) for step in finding.advice]
    assert any(command in (step.command or "") for step in advice)
    assert not any("nvidia-smi" in (step.command or "") or "ower-cycle" in step.text for step in advice)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("nhc: GPU check failed on these GPUs:\n  serial 1652922012345\n", Status.FAIL),
        ("CUDA device is lost:\n  slot 5\n", Status.WARN),
        ("The following GPUs are unhealthy:\n  0000:3b:00.0\n", Status.WARN),
        ("2 GPUs have failed the burn-in test:\n  GPU-11111111-aaaa-bbbb-cccc-000000000001\n", Status.WARN),
    ],
)
def test_an_introduction_may_be_the_only_news(text: str, status: Status) -> None:
    for whole in (text, f"{CLEAN}\n{text}"):
        assert [finding.status for finding in said(whole)] == [status]


@pytest.mark.parametrize(
    "head", ["ERROR 11-28 12:00:00 [health.py:20]", "E1128 12:00:00.123456 1234 health.cc:20]"], ids=["vLLM", "glog"]
)
def test_an_indented_line_is_no_news_only_below_a_frame(head: str) -> None:
    finds(said(f"{CLEAN}\n{head}     GPU 1 ran out of spare rows\n"), Status.FAIL)
    frame = f'{head}   File "/a/w.py", line 7, in f\n{head}     raise RuntimeError(f"{{GPU}} failed")\n'
    assert said(f"{CLEAN}\n{frame}{frame.replace('7', '8')}") == []


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        ("only 7/8 GPUs visible", [Status.FAIL]),
        ("n1: Only 7 of 8 GPUs are detected.", [Status.FAIL]),
        ("ERROR: only 1/8 GPUs seen", [Status.FAIL]),
        ("only 1/18 GPUs visible", [Status.FAIL]),
        ("Only 8/8 GPUs visible, but GPU 3 is missing", [Status.FAIL]),
        # of a node, or of what a process is given
        ("only 7/8 GPUs", [Status.UNKNOWN]),
        ("n1 has only 7 of 8 GPUs", [Status.UNKNOWN]),
        ("Only 4 of 8 GPUs are visible to it", [Status.UNKNOWN]),
        ("In the pod only 4/8 GPUs visible", [Status.UNKNOWN]),
        ("Only 2 of 8 GPUs are busy", [Status.WARN]),
        ("We use only 4 of 8 GPUs for this", [Status.WARN]),
        *((text, []) for text in ("only 8/8 GPUs visible", "only 8 of 8 GPUs visible", "only 18/18 GPUs visible")),
    ],
)
def test_fewer_gpus_than_there_are_is_a_failure_unless_it_may_be_of_a_process(
    text: str, statuses: list[Status]
) -> None:
    assert [finding.status for finding in said(f"{CLEAN}\n{text}\n")] == statuses


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (f"Warning: GPU with UUID {_UUID} is too old. Marking it unhealthy", Status.FAIL),
        ('level=warning msg="GPU 0 is set to unhealthy"', Status.FAIL),
        (f"I0102 03:04:05.123456 1 server.go:12] 'nvidia.com/gpu' device marked unhealthy: {_UUID}", Status.FAIL),
        ('level=warning msg="if GPU 0 is set to unhealthy, reset it"', None),
        ("Marking GPU 1 as healthy again", None),
        (
            "  Warning  UnexpectedAdmissionError  2m  kubelet  Allocate failed due to no healthy devices present; "
            "cannot allocate unhealthy devices nvidia.com/gpu",
            Status.FAIL,
        ),
        ("I0501 10:00:00.000000 1 nvidia.go:12] GPUs are marked unhealthy on these Xids: 48,79", None),
        ("health check of the GPUs: devices marked unhealthy: 0", Status.WARN),
        ("ERROR gpu-monitor: unhealthy devices: 0,1 (Xid 48)", Status.FAIL),
        # a program of the node, behind the name of its container
        ('nvidia-mig-manager time="2025-10-30T07:33:20Z" level=error msg="cannot set MIG mode"', Status.FAIL),
        ('nvidia-mig-manager time="2025-10-30T07:33:20Z" level=info msg="cannot set MIG mode"', None),
    ],
)
def test_who_gives_gpus_out_and_takes_one_away_says_that_it_is_bad(text: str, status: Status | None) -> None:
    found = [finding.status for finding in said(f"{CLEAN}\n{text}\n")]
    assert found == ([status] if status else [])


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        ("Expected 8 GPUs, found 7", [Status.FAIL]),
        ("GPU count: 7 (expected 8)", [Status.FAIL]),
        ("GPUs: expected=8 found=7", [Status.FAIL]),
        ("Expected at least 8 H100 GPUs on this node, found 7", [Status.FAIL]),
        ("8 GPUs expected, 7 found", [Status.FAIL]),
        ("number of GPUs 7 does not match expected 8", [Status.FAIL]),
        ("n1: gres/gpu count reported lower than configured (7 < 8)", [Status.FAIL]),
        # of what a process is given
        ("the container has 4 GPUs, expected 8", [Status.UNKNOWN]),
        ("ValueError: expected 8 GPUs, but found 7", [Status.UNKNOWN]),
        ("[rank0]: expected 8 GPUs, found 7", [Status.WARN]),
        # no fewer, and no counts of GPUs
        ("expected 8 GPUs, found 8", []),
        ("Expected 7 GPUs, found 8", []),
        ("if 8 GPUs are expected and 7 found, reboot", []),
        ("GPUs reached 400 GB/s, expected 450", []),
        ("temperature of GPUs: 40, expected 85", []),
        ("expected GPU clock 1980, found 1410", []),
        ("Max temperature of GPUs: expected 30, found 25", []),
        ("GPUs: clocks expected 19, found 17", []),
        ("GPUs expected: 8, NVSwitches found: 4", []),
        ("32 GPUs expected in the rack, 8 found in this node", []),
        ("Expected 64 GPUs, found 8", []),
    ],
)
def test_fewer_gpus_than_expected_are_a_failure_unless_a_process_says_so(text: str, statuses: list[Status]) -> None:
    assert [finding.status for finding in said(f"{CLEAN}\n{text}\n")] == statuses


@pytest.mark.parametrize(
    "text",
    [
        "while training GPU 3 fell off the bus",
        "> while training GPU 3 fell off the bus",
        "head node gpu-1 is down: GPU 3 is lost",
        "for 3 days GPU 2 is missing",
        "python crashed on GPU 3 with Xid 79",
        "nvidia-driver-daemonset-x pod reports that GPU 3 fell off the bus",
    ],
)
def test_a_sentence_that_begins_like_a_command_is_one(text: str) -> None:
    finds(said(f"{CLEAN}\n{text}\n"), Status.FAIL)


@pytest.mark.parametrize(
    "text",
    [
        "dcgmi marked GPU 3 unhealthy",
        "modprobe nvidia failed",
        "dkms install nvidia 550.54 failed",
    ],
)
def test_what_may_be_a_command_or_bad_news_is_unknown(text: str) -> None:
    for shown in (f"{text}\n", f"{CLEAN}\n{text}\n{text}\n"):
        (finding,) = said(shown)
        assert finding.status is Status.UNKNOWN
        assert text in (finding.reason or "")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GPU 3 fails the burn-in test", Status.FAIL),
        ("nvidia-smi no longer responds", Status.WARN),
        ("lspci no longer lists GPU 3", Status.UNKNOWN),
        ("dmesg Xid 79 on GPU 3", Status.UNKNOWN),
        ("dcgmi diag fails on GPU 3", Status.UNKNOWN),
        ("GPU 3 no longer fails", None),
        ("GPU 3 fails over to the spare", None),
    ],
)
def test_bad_news_above_a_good_table_are_not_lost(text: str, status: Status | None) -> None:
    assert [finding.status for finding in said(f"{text}\n{CLEAN}")] == ([status] if status else [])


def test_the_zone_of_a_time_is_no_bus_id() -> None:
    (finding,) = said("[task 2025-07-01T05:06:30.004+00:00] [train] nvidia-smi: error: failed with return code 18\n")
    assert (finding.status, finding.subject.kind) == (Status.FAIL, "node")
    for text, bus_id in (
        ("2024-11-14 07:10 UTC+02:00: GPU 3 has fallen off the bus", None),
        ("07:10: GPU has fallen off the bus", None),
        ("GPU 07:10 has fallen off the bus", "0000:07:10.0"),
        ("Xid (PCI:07:00): 79, GPU has fallen off the bus", "0000:07:00.0"),
        ("+0000:07:00.0: GPU has fallen off the bus", "0000:07:00.0"),
    ):
        (finding,) = said(f"{text}\n")
        assert finding.subject.bus_id == bus_id, text


@pytest.mark.parametrize(
    "command",
    [
        'grep -r "GPU has fallen off the bus" /var/log/',
        "# grep -i 'GPU is lost' /var/log/messages",
        "awk '/GPU has fallen off the bus/' /var/log/syslog",
        'journalctl -k --grep "GPU has fallen off the bus"',
        "echo GPU 3 is lost",
        "cat my-gpu-error.log",
        "docker run --gpus all my-image nvidia-smi",
        "nvidia-fabricmanager --version",
        "systemctl reset-failed nvidia-persistenced",
        "grep error nvidia.log",
        "journalctl gpu error",
        "python gpu.error.py",
    ],
)
def test_a_command_is_no_finding_whatever_it_looks_for(command: str) -> None:
    assert said(f"{command}\n{CLEAN}\n{command}\n") == []


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("nvidia-container-cli: device error: 0: unknown device", Status.FAIL),
        ("errors: 0, GPU 3", None),
        ("GPU 3 Correctable Error           : 0", None),
    ],
)
def test_a_text_behind_error_0_is_no_count_of_none(text: str, status: Status | None) -> None:
    assert [finding.status for finding in said(f"{CLEAN}\n{text}\n")] == ([status] if status else [])


def test_a_value_that_a_person_calls_unreadable_is_unknown() -> None:
    (finding,) = said("On our node the power of the GPU reads ERR!.\n")
    assert (finding.status, "reads ERR!" in (finding.reason or "")) == (Status.UNKNOWN, True)
    (faulty,) = said("GPU 1 | ERR! | ERR! | FAULTY\n")
    (failed,) = said("node health: GPU 1 FAILED (fan ERR!, power ERR!)\n")
    assert (faulty.status, failed.status) == (Status.FAIL, Status.WARN)


@pytest.mark.parametrize(
    ("taint", "condition", "status"),
    [
        ("node.kubernetes.io/unreachable:NoExecute", "Ready  Unknown  x  NodeStatusUnknown  silent", Status.UNKNOWN),
        ("node.kubernetes.io/not-ready:NoSchedule", "Ready  False  x  KubeletNotReady  no network", Status.UNKNOWN),
        ("node.kubernetes.io/not-ready:NoSchedule", "Ready  False  x  KubeletNotReady  no nvidia runtime", Status.FAIL),
        ("node.kubernetes.io/not-ready:NoSchedule", "Ready  False  x  y  container runtime is down", Status.FAIL),
        ("node.kubernetes.io/network-unavailable:x", "NetworkUnavailable  True  x  NoRoute  z", Status.UNKNOWN),
    ],
)
def test_a_taint_says_no_more_than_the_condition_that_it_follows(taint: str, condition: str, status: Status) -> None:
    head = f"# kubectl describe node vpc11\nName:    vpc11\nTaints:             {taint}\n"
    (finding,) = said(f"{head}Conditions:\n  {condition}\n")
    assert (finding.status, f"vpc11 is {condition.split()[0]}" in text_of(finding)) == (status, True)
    finds(said(head), Status.UNKNOWN, "vpc11 is")
    # that a person cordoned it too, or that it is short of memory, hides neither
    for more in ("Unschedulable:      true\n", "Conditions:\n  MemoryPressure  True  x  KubeletShort  y\n"):
        assert [each.status for each in said(head + more)] == [Status.UNKNOWN, Status.WARN]


@pytest.mark.parametrize(
    ("state", "status"),
    [
        *((state, Status.FAIL) for state in ("DOWN", "DOWN*", "DOWN+NOT_RESPONDING", "DOWN+DRAIN")),
        *((state, Status.FAIL) for state in ("FAIL", "FAIL*", "FAIL+DRAIN")),
        *((state, Status.UNKNOWN) for state in ("IDLE*", "UNKNOWN*", "DRAIN*", "INVAL", "DOWN+POWERED_DOWN")),
        *((state, Status.UNKNOWN) for state in ("DOWN~", "DOWN+PLANNED", "DOWN+RESERVED")),
        *((state, Status.WARN) for state in ("IDLE+DRAIN", "DRAINING", "MIXED+DRAIN")),
    ],
)
def test_a_node_that_slurm_calls_down_fails_and_one_that_it_does_not_hear_from_is_unknown(
    state: str, status: Status
) -> None:
    record = f"NodeName=n1 Arch=x86_64 Gres=gpu:8\n   State={state} Weight=1\n"
    for reason in ("", "   Reason=Node unexpectedly rebooted [slurm@now]\n"):
        assert [finding.status for finding in said(record + reason)] == [status]
    by_a_person = said(f"{record}   Reason=firmware rollout [root@now]\n")
    assert [finding.status for finding in by_a_person] == [Status.UNKNOWN if status is Status.FAIL else status]


def test_slurms_reason_that_a_node_does_not_respond_is_unknown_without_its_state() -> None:
    head = "REASON               USER      TIMESTAMP           NODELIST\n"
    rows = [f"{reason:<20} slurm     2026-10-02T10:11:12 n1\n" for reason in ("Not responding", "new disk")]
    assert [[each.status for each in said(head + row)] for row in rows] == [[Status.UNKNOWN], [Status.WARN]]


_NODE = """\
status:
  allocatable:
    nvidia.com/gpu: "8"
  capacity:
    nvidia.com/gpu: "8"
  conditions:
  - lastHeartbeatTime: "2026-10-02T10:11:12Z"
    message: all is well, or not
    reason: {reason}
    status: {status}
    type: {kind}
  - lastHeartbeatTime: "2026-10-02T10:11:12Z"
    reason: KubeletHasSufficientPID
    status: "False"
    type: PIDPressure
"""


@pytest.mark.parametrize(
    ("kind", "status", "reason", "expected"),
    [
        ("Ready", '"True"', "KubeletReady", []),
        ("Ready", '"False"', "KubeletNotReady", [Status.UNKNOWN]),
        ("Ready", "Unknown", "NodeStatusUnknown", [Status.UNKNOWN]),
        ("GpuProblem", '"True"', "Xid79", [Status.FAIL]),
    ],
)
def test_conditions_of_a_node_are_read_in_yaml_and_json(
    kind: str, status: str, reason: str, expected: list[Status]
) -> None:
    text = _NODE.format(kind=kind, status=status, reason=reason)
    json_text = json.dumps({"kind": "Node", **yaml.safe_load(text)}, indent=4)
    for whole in (text, f"{json_text}\n"):
        assert [finding.status for finding in said(whole) if finding.status is not Status.PASS] == expected


def test_a_list_of_nodes_tells_which_ones_get_no_pods() -> None:
    head = "NAME   STATUS                     ROLES    AGE   VERSION\nn1     Ready   <none>   55d   v1.29.1\n"
    (silent,) = said(f"{head}n2     NotReady   <none>   55d   v1.29.1\n")
    assert (silent.status, "n2 is NotReady" in text_of(silent)) == (Status.UNKNOWN, True)
    (cordoned,) = said(f"{CLEAN}\n{head}n3     Ready,SchedulingDisabled   <none>   55d   v1.29.1\n")
    assert (cordoned.status, "n3 is Ready,SchedulingDisabled" in text_of(cordoned)) == (Status.WARN, True)
    assert said(f"{CLEAN}\n{head}") == []


def test_tolerations_of_pods_are_no_taints_of_the_node() -> None:
    no_pods = "node.kubernetes.io/not-ready:NoExecute"
    pods = f"Name:  trainer-0\nTolerations:  nvidia.com/gpu:NoSchedule op=Exists\n              {no_pods} op=Exists\n"
    template = f"Pod Template:\n  Tolerations:  {no_pods}\n                {no_pods} op=Exists\n"
    node = "# kubectl describe node gpu-7 && kubectl describe pod trainer-0\nName:    gpu-7\nTaints:  {}\n"
    assert said(node.format("<none>") + pods + template) == []
    (finding,) = said(node.format(f"nvidia.com/gpu:NoSchedule\n         {no_pods}") + pods)
    assert "gpu-7 is not-ready" in text_of(finding)


def test_a_list_of_reasons_in_any_columns_of_sinfo_names_its_nodes() -> None:
    header = "$ sinfo --list-reasons --Format=reason:40,nodelist\nREASON                NODELIST\n"
    text = f"{header}Low RealMemory        gpu[001-003]\n"
    node = pasted(text)
    assert [(each.text, each.loudness) for each in node.reported] == [
        ("gpu[001-003] is down or drained: Low RealMemory", "warning")
    ]
    assert not any("no node is out of service" in note for note in node.source.notes)


def test_columns_that_no_reader_reads_are_no_pass() -> None:
    """NVIDIA/DCGM #263: the column of a field that is not in the table of readings."""
    rows = "#Entity    XIDER        \nID                      \nGPU 0      0            \nGPU 1      120          \n"
    finds(said(rows), Status.FAIL, "Xid 120", gpu=1)
    (errors,) = said(rows.replace("XIDER", "DBEVL").replace("120", "  2"))
    assert (errors.status, "column DBEVL is 2" in text_of(errors)) == (Status.UNKNOWN, True)
    assert said(rows.replace("120", "  0")) == []


def test_a_count_of_errors_that_no_fact_holds_is_no_pass_in_csv_either() -> None:
    scope = "ecc.errors.uncorrected.volatile"
    rows = f"index, name, {scope}.l2_cache\n0, NVIDIA H100, 0\n1, NVIDIA H100, 7\n"
    finds(said(rows), Status.UNKNOWN, f"column {scope}.l2_cache is 7", gpu=1)
    assert said(rows.replace("7", "0")) == said(rows.replace("uncorrected", "corrected")) == []
    assert judge(pasted(rows.replace("l2_cache", "device_memory"))).verdict == "fail"
    # a total contains it
    assert said(f"index, name, {scope}.l2_cache, {scope}.total\n1, NVIDIA H100, 7, 7\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "GPU 3 has not responded since it had fallen off the bus",
        "GPU 3 is not visible",
        "GPU 3 has fallen off the bus, what now?",
        "Why has GPU 3 fallen off the bus?",
        "Has GPU 5 fallen off the bus? GPU 3 fell off the bus.",
        "GPU 5 had fallen off the bus and was swapped. GPU 3 has fallen off the bus.",
        "GPU 3 fell off the bus and must be replaced",
        "GPU 3 fell off the bus and its cable was swapped",
        "GPU 3 was swapped and has fallen off the bus",
        "GPU 3 fell off the bus, was replaced, and fell off again",
        "GPU 3 has not fallen off the bus but is unreachable",
        "We found that GPU 3 had fallen off the bus",
        "dmesg says GPU 3 has fallen off the bus",
        "nvidia-smi does not answer: GPU 3 has fallen off the bus",
        "GPU 3 fell off the bus. It was not replaced.",
        "GPU 3 fell off the bus. It must be replaced.",
        "GPU 3 fell off the bus. Its cable was replaced.",
        "GPU 3 fell off the bus. We replaced the fan.",
        "GPU 3 fell off the bus and we replaced the fan",
        "GPU 3 fell off the bus. It was replaced. The new one fell off the bus as well.",
        "GPU 3 fell off the bus and was replaced. Still the same.",
        "GPU 5 fell off the bus. It was replaced. GPU 3 fell off the bus.",
        "GPU 3 fell off the bus. GPU 4 fell off the bus. It was replaced.",
        "The node was fixed but GPU 3 fell off the bus",
        "The node was fixed, and GPU 3 fell off the bus",
        "I never saw that before, but GPU 3 fell off the bus",
        "GPU 3 was fixed but has failed again",
        "GPU 3 fell off the bus. Is it fixed by a reboot?",
        "GPU 3 fell off the bus. The problem is resolved by a reboot.",
        "GPU 3 fell off the bus, this is fixed in driver 570",
    ],
)
def test_what_is_told_as_so_now_is_a_fault_whatever_stands_beside_it(text: str) -> None:
    finds(said(f"{text}\n"), Status.FAIL, gpu=3)


@pytest.mark.parametrize(
    "text",
    ["GPU 3 fell off the bus. GPU 4 was replaced.", "GPU 3 and GPU 4 fell off the bus. GPU 3 was replaced.",
     "GPUs 3 and 4 fell off the bus. It was replaced."],
)  # fmt: skip
def test_of_several_gpus_it_is_not_known_which_one_was_mended(text: str) -> None:
    finds(said(f"{text}\n"), Status.FAIL)


def test_the_past_perfect_alone_leaves_open_whether_it_is_over() -> None:
    (finding,) = said("GPU 3 had fallen off the bus on Monday.\n")
    assert (finding.status, "told as past" in (finding.reason or "")) == (Status.UNKNOWN, True)


def test_an_xid_of_a_program_is_named_where_nothing_else_is() -> None:
    report = judge(pasted("Xid 31 on node 7\n"))
    text = " ".join(render_text(report, width=100, color=False).split())
    assert report.verdict == "unknown"
    assert "Xid 31 (GPU memory page fault) is of a program" in text
    assert "Not in this text: driver" in text


def test_an_xid_that_a_person_has_from_dmesg_is_no_command() -> None:
    finds(said("dmesg shows Xid 79\n"), Status.FAIL)


def test_another_host_that_was_not_reached_is_a_warning_beside_a_table() -> None:
    finds(said(f"{CLEAN}\nssh: connect to host gpu-8 port 22: Connection refused\n"), Status.WARN)


def test_what_a_bmc_logs_as_usual_is_no_news() -> None:
    usual = (
        " 2e1 | 03/14/2025 | 20:11:02 | System Event #0xff | Timestamp Clock Sync | Asserted\n"
        " 2e2 | 03/15/2025 | 02:40:31 | Power Supply PSU3 | Power Supply AC lost | Deasserted\n"
    )
    assert said(f"{CLEAN}\n{usual}") == []


def test_an_address_in_a_bmcs_words_is_no_index() -> None:
    (finding,) = said("A fatal error was detected on a component at bus 59 device 0 function 0.\n")
    assert (finding.subject.gpu, finding.subject.bus_id) == (None, "0000:3b:00.0")
    (finding,) = said("error: GPU 3 functional check failed\n")
    assert finding.subject.gpu == 3


def test_a_port_that_is_up_with_a_bad_cable_is_no_pass() -> None:
    text = (
        "# mlxlink -d mlx5_6\nOperational Info\n----------------\nState                : Active\n"
        "Physical state       : LinkUp\nRecommendation       : {}\n"
    )
    (finding,) = said(text.format("Bad signal integrity"))
    assert (finding.status, finding.subject.label) == (Status.WARN, "mlx5_6")
    assert said(text.format("No issue was observed")) == []
    (finding,) = said(text.replace("Active", "Polling").format("Cable is unplugged"))
    assert finding.status is Status.UNKNOWN


HEALTH = (
    "| Health Monitor Report     |                     |\n+===========================+=====================+\n"
    "| Overall Health            | Failure             |\n| GPU                       |                     |\n"
    "| -> 2                      | Failure             |\n|    -> Errors              |                     |\n"
    "|       -> Memory system    | Failure             |\n|                           | Detected 2 volatile |\n"
    "|                           | double-bit errors   |\n| -> 3                      | Warning             |\n"
    "|    -> Errors              |                     |\n|       -> PCIe system      | Warning             |\n"
    "|                           | 21 replays a minute |\n"
)


def test_each_gpu_that_dcgm_finds_unwell_is_as_bad_as_it_says_with_its_words() -> None:
    found = [(finding.status, finding.subject.gpu, present(finding.found).text) for finding in said(HEALTH)]
    assert found == [
        (Status.FAIL, 2, "Failure: GPU 2 Memory system; Detected 2 volatile double-bit errors"),
        (Status.WARN, 3, "Warning: GPU 3 PCIe system; 21 replays a minute"),
    ]
    unread = HEALTH.replace("Detected 2 volatile", "Unable to read the ")
    assert [finding.status for finding in said(unread)] == [Status.FAIL, Status.WARN]
    only_warned = HEALTH.replace("| -> 2                      | Failure", "| -> 2                      | Warning")
    worst = [finding.status for finding in said(only_warned.replace("system    | Failure", "system    | Warning"))]
    assert worst == [Status.WARN, Status.WARN, Status.FAIL], "the whole is called a failure"


def test_a_test_of_dcgm_that_fails_on_several_gpus_is_of_none_alone() -> None:
    row = "| GPU Memory  | Fail - All  |\n| Warning     | GPU 0 is not ready |\n"
    (of_one,) = said(row)
    (of_all,) = said(row + "| Warning     | GPU 1 |\n|             | Error is not ready |\n")
    assert (of_one.subject.gpu, of_all.subject.gpu, of_all.status) == (0, None, Status.FAIL)
    setting = row.replace("GPU Memory ", "Persistence Mode").replace("is not ready", "has it off")
    assert [each.status for each in said(setting + "| Warning     | GPU 1 has it off |\n")] == [Status.WARN]


MENTIONED = {
    "denied": "We didn't see Xid 79 this week on GPU 3.\n",
    "not": "GPU 3 has NOT fallen off the bus\n",
    "n't": "GPU 3 hasn't fallen off the bus\n",
    "not thought": "I don't think GPU 3 has fallen off the bus\n",
    "asked by order": "Has GPU 3 fallen off the bus?\n",
    "asked without a mark": "has GPU 3 fallen off the bus\n",
    "asked by mark": "GPU 3 has fallen off the bus on our node?\n",
    "isn't": "isn't GPU 3 lost\n",
    "over": "all 8 GPUs ok. GPU 3 had fallen off the bus on Monday and was swapped.\n",
    "mended": "GPU 3 fell off the bus on Monday and we replaced it.\n",
    "mended next": "GPU 3 fell off the bus. It was replaced.\n",
    "mended by name": "GPU 3 fell off the bus. GPU 3 has since been replaced. GPU 4 looks fine.\n",
    "fixed": "GPU 3 fell off the bus. Fixed by a reboot.\n",
    "now fixed": "GPU 3 fell off the bus. It is now fixed.\n",
    "condition": "If GPU 3 fell off the bus but the node answers, reset it\n",
    "changelog": "Fixed a bug where the job ends but GPU 3 hangs\n",
    "asked": "What would I do if GPU 3 has fallen off the bus?\n",
    "none": "INFO: 0 errors on GPU 3, no failures\n",
    "introduced": "The tool prints this error message:\n",
    "README": (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8"),
    "docs": (Path(__file__).parents[3] / "docs/diagnose.md").read_text(encoding="utf-8"),
}


@pytest.mark.parametrize("text", MENTIONED.values(), ids=MENTIONED)
def test_what_only_writes_about_errors_is_no_report_of_one(text: str) -> None:
    with pytest.raises(SourceError, match="not recognised"):
        pasted(text)
    assert said(f"{CLEAN}\n{text}") == []


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    "text", ["x" * 2_000_000, "GPU " * 500_000, "error: " * 300_000, "\x1b[31mnoise\x1b[0m"], ids=range(4)
)
def test_lines_of_any_form_and_length_are_harmless(text: str) -> None:
    try:
        pasted(f"{text}\n")
    except SourceError:
        return
    assert judge(pasted(f"{text}\n")).verdict != "pass"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("One of the Titan V boards in rack3-n07 has died, we run on with the other seven.", Status.FAIL),
        ("GPU 3 is dead.", Status.FAIL),
        ("The A100 in slot 4 is gone since the reboot", Status.FAIL),
        ("2 of my cards are not showing up in nvidia-smi", Status.FAIL),
        ("This box has eight A40 but nvidia-smi lists only 6 of them.", Status.UNKNOWN),
        ("lspci shows 8 GPUs, nvidia-smi shows 7", Status.UNKNOWN),
        ("I have 10 P100 GPUs in a chassis and nvidia-smi only shows 9", Status.UNKNOWN),
        ("The chassis takes 16 GPUs, I was given 4, and nvidia-smi lists 4", Status.UNKNOWN),
        ("salloc --gres=gpu:3 of a node with 4 GPUs, nvidia-smi shows 3", Status.UNKNOWN),
        ("In our container, GPU 1 is gone", Status.UNKNOWN),
        ("GPU 5 seems to be dead", Status.UNKNOWN),
        ("The H200s are gone.", Status.UNKNOWN),
        ("3 GPUs are gone, we moved them", Status.UNKNOWN),
        ("GPU missing", Status.UNKNOWN),
        ("The GPU no longer shows up in nvidia-smi", Status.FAIL),
        ("GPU 5 was missing on Monday", Status.UNKNOWN),
        ("ERROR: nhc: only 3 of 4 GPUs found, this host should go to repair", Status.FAIL),
        ("FATAL: only 3 of 4 GPUs found, see whether a cable is loose", Status.FAIL),
        ("A GTX 980 card in gpu-1-2 died", Status.FAIL),
        ("3 GPUs disappeared in nvidia-smi", Status.FAIL),
        ("GPU 5 is gone. It did not come back, and must be replaced.", Status.FAIL),
        ("GPU 1 vanished and is back. GPU 2 died.", Status.FAIL),
        ("nvidia-smi says: infoROM is corrupted at gpu 0000:4C:00.0", Status.WARN),
        ("In my container nvidia-smi lists only 3 of 8 GPUs", Status.UNKNOWN),
        ("GPU 2 fell off the bus and was fixed by a reseat, or so we thought.", Status.FAIL),
    ],
)
def test_a_gpu_that_a_person_calls_gone_or_does_not_count_is_a_failure(text: str, status: Status) -> None:
    finds(said(f"{text}\n"), status, text.rpartition("R: ")[2].removeprefix("FATAL: "))


@pytest.mark.parametrize(
    "text",
    [
        "We have 8 A100 GPUs but my script uses only 4 of them.",
        "nvidia-smi shows 8 GPUs, 3 of them idle",
        "lspci shows 8 GPUs and nvidia-smi shows 8",
        "We run 32 GPUs over 8 nodes, nvidia-smi shows 4 on each",
        "The problem on GPU 2 is gone, and the GPU memory is free",
        "If a GPU died, power the node off.",
        "Has a GPU of n7 died?",
        "A GPU of n7 died in May and was replaced.",
        "GPU 1 does not appear to be throttled",
        "The GPUs do not show anything odd",
        "GPU 1 no longer shows up in our dashboard",
        "The A100 no longer shows the power warning",
        "GPU 5 was missing at noon, but it is back since the power cycle",
        "Three GPUs vanished on Friday; a reset brought them back",
        "My 3090 died, I sent it in and got a new one.",
        "*** Several devices missing",
        "only 3 of 4 devices found",
        "WARNING: 2 devices no longer appear in the array",
        "The RAID card is dead, all 4 GPUs are fine",
        "L4 is gone from the price list",
        "GPU missing: no",
        "A GPU died last year",
        "the process that used GPU 3 died, and so did job 3090",
        "It is not so that GPU 3 died",
        "4 GPUs are in it, nvidia-smi shows 1 with ECC off",
        "4 H200 GPUs; nvidia-smi shows 2 are warm",
        "we have 4 GPUs; nvidia-smi shows 2 in MIG mode",
        "2 A30 cards, 8 MIG devices; nvidia-smi lists 2",
    ],
)
def test_gpus_of_which_none_is_missing_are_no_failure(text: str) -> None:
    assert said(f"{text}\n\n{CLEAN}") == []


_PS = "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\n"


def test_a_program_of_the_driver_that_waits_in_the_kernel_is_unknown() -> None:
    row = "root        {}  0.0  0.0  23488  6056 ?        {}    Jun02   0:00 /usr/bin/nvidia-smi -L\n"
    train = "bob        9123 99.0  4.1 992348 80605 ?        D    10:02   9:00 python train.py\n"
    assert said(f"{CLEAN}\n{_PS}{row.format(2011, 'Ss')}{train}") == []
    for shown in (
        _PS + row.format(2011, "D") + train,
        " 2011 D+   nvidia-smi -q\n",
        f"$ ps aux | grep nv\n{row.format(2011, 'Dl')}",
    ):
        (finding,) = said(shown)
        assert (finding.status, "2011" in text_of(finding)) == (Status.UNKNOWN, True)


def test_the_host_of_the_only_prompt_is_the_node_and_that_of_kubernetes_is_named() -> None:
    failed = "ERROR:  nhc:  Health check failed:  check_nv_links:  link 4 inactive\n"
    report = judge(pasted(f"[admin@dgx-a17 ~]$ nhc\n{failed}"))
    assert report.host.name == "dgx-a17"
    assert "that machine (dgx-a17)" in render_text(report, width=100, color=False)
    assert judge(pasted(f"[admin@dgx-a17 ~]$ nhc\n{failed}root@dgx-a18:~# nhc\n{failed}")).host.name is None
    assert judge(pasted(f"root@4f3c2b1a0d9e:/# nhc\n{failed}")).host.name is None, "the id of a container"
    for there in ("ssh root@n7 nhc", "srun -w n7 nhc", "pdsh -w n7 nhc", "kubectl exec p -- nhc", "docker exec c nhc"):
        for prompt in ("[admin@dgx-a17 ~]$", "admin@dgx-a17:~$"):
            assert judge(pasted(f"{prompt} uptime\n{prompt} {there}\n{failed}")).host.name is None, there
    gpus = '  {}:\n    nvidia.com/gpu: "{}"\n'
    node = "status:\n  addresses:\n  - address: gpu07\n    type: Hostname\n"
    (finding,) = said(node + gpus.format("allocatable", 3) + gpus.format("capacity", 4))
    assert (finding.subject.label, "3 of 4 GPUs of gpu07" in text_of(finding)) == ("node", True)


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("index, name, gsp.health\n0, NVIDIA H200, OK\n1, NVIDIA H200, Not OK\n", "GPU 1"),
        ("GPU 00000000:1B:00.0\n    Product Name    : NVIDIA H100\n    Board Health    : Degraded\n", "0000:1b:00.0"),
    ],
)
def test_a_value_that_no_fact_holds_and_that_says_not_well_is_a_failure(text: str, subject: str) -> None:
    (finding,) = said(text)
    assert (finding.status, subject in finding.subject.label) == (Status.FAIL, True)


def test_more_errors_than_are_kept_are_no_page_about_errors() -> None:
    letters = "abcdefghijklmnopqrst"
    lines = [f"ERROR: the part {one}{two} of the driver of GPU 3 failed\n" for one in letters for two in letters]
    assert said("".join(lines * 3))


def test_the_health_of_the_fabric_counts_without_its_state_and_passes_nothing() -> None:
    text = "index, name, fabric.health.summary\n0, NVIDIA H200, Healthy\n1, NVIDIA H200, Unhealthy\n"
    (fabric,) = [each for each in judge(pasted(text)).checks if each.id == "nvlink.fabric"]
    assert [(f.subject.gpu, f.status) for f in fabric.findings] == [(0, Status.SKIP), (1, Status.FAIL)]


def test_a_failure_is_not_left_out_behind_many_warnings() -> None:
    words = "map pin copy read write flush open close seek send take join part list"
    warnings = "".join(f"WARNING: dcgm: GPU 1 failed to {word} the buffer\n" for word in words.split())
    findings = said(f"{warnings}GPU 3 has fallen off the bus\n")
    [failed] = [finding for finding in findings if finding.status is Status.FAIL]
    assert failed.subject.gpu == 3
    [rest] = [finding for finding in findings if finding.status is Status.UNKNOWN]
    assert "more statements like these" in text_of(rest)


@pytest.mark.parametrize(
    "text",
    [
        "The server reboots whenever all eight GPUs are under full load\n",
        "After an hour of training the computer shuts down.\n",
        f"When I train two models on it, the whole machine freezes, and this is what it shows before:\n\n{CLEAN}",
    ],
)
def test_a_machine_that_goes_down_by_itself_is_no_pass_and_no_failure(text: str) -> None:
    (finding,) = said(text)
    assert finding.status is Status.UNKNOWN
    assert any("journalctl" in (step.command or "") for step in finding.advice)
    assert judge(pasted(text)).exit_code == 3


@pytest.mark.parametrize(
    "line",
    [
        "After the update of the driver the server no longer crashes under load",
        "We rebooted the server yesterday and all GPUs are visible again",
        "If the node reboots during the training then please send us this",
        "The script reboots the node every Sunday for maintenance reasons",
        "Does the server reboot when you start the training there?",
        "When the server crashes, the job is started again",
        "The server crashed yesterday, and was repaired",
        "The X server crashes when the monitor is unplugged",
        "The server freezes the weights of the encoder",
        "Training is resilient to losing a node",
        "The machine shuts down every night at 20:00",
        "GPU 1 is not listed in the ticket",
        "GPU 1 is not detected as faulty",
    ],
)
def test_prose_beside_a_table_that_tells_of_no_trouble_changes_nothing(line: str) -> None:
    assert said(f"{line}\n\n{CLEAN}") == []


@pytest.mark.parametrize(
    ("device", "why", "status"),
    [
        ("nvidia-caps-imex-channels/", "No such file or directory", Status.WARN),
        ("nvidia-caps-imex-channels/channel0", "Permission denied", Status.FAIL),
        ("nvidia0", "No such file or directory", Status.FAIL),
    ],
)
def test_an_absent_folder_of_imex_is_no_failure(device: str, why: str, status: Status) -> None:
    finds(said(f"ls: cannot access '/dev/{device}': {why}\n"), status)
