"""Whole inputs of every parser, made of simulated nodes and of the dumps beside the tests of facts."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec

from gpudoctor.checks.core.registry import registry
from gpudoctor.facts.captures.archives import pack
from gpudoctor.facts.model.driver import DkmsBuild
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Host, Node, to_json
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.facts.stream.messages import GpuTick, HostTick, Opening, ProcessTick, Tick
from gpudoctor.report.bundle_files import files_of
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report, render_json
from tests.conftest import ROOT
from tests.facts import transcripts
from tests.facts.host_texts import PORTS, dkms_status, ibstat, ibstatus, ibv_devinfo, proc_limits, ulimit_a
from tests.facts.kernel_words import DRIVER_LINES, HOST_LINES
from tests.facts.transcripts import COLLECT_ENV, TOPIC, csv, gpu_list, table
from tests.fuzz.profile import LONG

CAPTURES = Path(os.environ.get("GPUDOCTOR_CAPTURES", ROOT.parent / "shared" / "captures"))
DUMPS = Path(__file__).parent.parent / "facts" / "dumps"
BROKEN = ("h100-nvl-2", "ecc-uncorrected@1")


@cache
def broken_node() -> Node:
    """Two GPUs, small enough to try often; the second has the defects of `BROKEN`."""
    return apply_faults(load_node(BROKEN[0], {}), BROKEN[1:])


def dump(name: str) -> bytes:
    return (DUMPS / name).read_bytes()


def captured(*names: str) -> tuple[bytes, ...]:
    """Real dumps, if present; the normal suite does without them, so that it is the same everywhere."""
    return tuple((CAPTURES / name).read_bytes() for name in names if LONG and (CAPTURES / name).is_file())


def topology(node: Node) -> bytes:
    """`nvidia-smi topo -m`."""
    gpus = [gpu.index for gpu in node.gpus]
    cells = {(pair.a, pair.b): pair for pair in known(node.pairs) or ()}
    rows = ["\t" + "\t".join(f"GPU{gpu}" for gpu in gpus) + "\tCPU Affinity\tNUMA Affinity"]
    for a in gpus:
        row = [f"GPU{a}"]
        for b in gpus:
            pair = cells.get((min(a, b), max(a, b)))
            links = pair and known(pair.nvlinks)
            row.append(" X " if a == b else f"NV{links}" if links else str(pair and known(pair.path)))
        rows.append("\t".join([*row, "0-31", "0"]))
    return ("\n".join([*rows, "", "Legend:", "  X    = Self"]) + "\n").encode()


def p2p(node: Node) -> bytes:
    """`nvidia-smi topo -p2p r`."""
    gpus = [gpu.index for gpu in node.gpus]
    rows = [" \t" + "\t".join(f"GPU{gpu}" for gpu in gpus)]
    rows += ["\t".join([f" GPU{a}", *("X" if a == b else "OK" for b in gpus)]).strip() + "\t" for a in gpus]
    return ("\n".join([*rows, "", "Legend:", "", "  X    = Self", "  OK   = Status Ok"]) + "\n").encode()


def nvlink(node: Node, option: str = "status") -> bytes:
    """`nvidia-smi nvlink` with `--status`, `-e` or `-R`."""
    lines = []
    for gpu in node.gpus:
        lines.append(f"GPU {gpu.index}: {known(gpu.name)} (UUID: {known(gpu.uuid)})")
        for link in known(gpu.nvlinks) or ():
            told = {
                "status": [f"{known(link.speed_gb_s)} GB/s"],
                "errors": [f"{word} Errors: 0" for word in ("Replay", "Recovery", "CRC")],
                "remote": [f"Remote Device {link.remote_bus_id}: Link 3"],
            }[option]
            lines += [f"\t Link {link.link}: {words}" for words in told]
    return ("\n".join(lines) + "\n").encode()


def paste(node: Node) -> bytes:
    """What a user copies out of a terminal: prompts, prose, and what several tools printed."""
    texts = {
        "nvidia-smi": table(node).encode(),
        "nvidia-smi -L": gpu_list(node).encode(),
        "nvidia-smi --query-gpu=index,name --format=csv": csv(node).encode(),
        "nvidia-smi topo -m": topology(node).expandtabs(8),
        "nvidia-smi nvlink -s": nvlink(node),
        "dmesg | tail": kernel_log(),
        "nvidia-smi -q -d CLOCK,PERFORMANCE": TOPIC.replace("0000:1B:00.0", node.gpus[0].bus_id.upper()).encode(),
        "python collect_env.py": COLLECT_ENV.replace("535.129.03", str(known(node.driver.library_version))).encode(),
    }
    prompts = b"".join(b"root@node7:~# " + command.encode() + b"\n" + text for command, text in texts.items())
    return b"My GPUs are slow, what is it?\n```\n" + prompts + b"```\n"


def kernel_log() -> bytes:
    """`dmesg` of a node with every kind of line."""
    events = []
    for fault in ("gpu-lost", "gsp-timeout", "xid-74", "nvswitch-fatal", "xid-unknown"):
        node = apply_faults(load_node("hgx-h100-8", {}), [fault])
        events += [event.text for event in known(node.kernel_log.events) or ()]
    lines = [f"[{place}.000001] {text}" for place, text in enumerate(events)]
    return (
        "\n".join([*lines, "[99.0] pcieport 0000:15:01.0: AER: Corrected error received: 0000:18:00.0"]) + "\n"
    ).encode()


def journal() -> bytes:
    """The same of `journalctl -k`."""
    return b"".join(
        b"Nov 21 10:00:00 node17 kernel: " + line.partition(b"] ")[2] + b"\n" for line in kernel_log().splitlines()
    )


def host_tools() -> bytes:
    """What tools of the host print, one after the other, and the kernel's messages about the host and the driver."""
    host = Host(memlock_kib=64, open_files=1024, processes=None)
    builds = (DkmsBuild("550.54.15", "6.8.0-45-generic", "installed"), DkmsBuild("570.124.06", None, "added"))
    texts = [ibstat(PORTS), ibstatus(PORTS), ibv_devinfo(PORTS), dkms_status(builds), ulimit_a(host), proc_limits(host)]
    lines = [line for line, *_ in (*HOST_LINES, *DRIVER_LINES)]
    return "\n".join([*texts, *(f"[{place}.5] {line}" for place, line in enumerate(lines)), ""]).encode()


def other_tools() -> bytes:
    """What DCGM, monitors and benchmarks print, one after the other; the diagnostic found a fault."""
    texts = [*transcripts.READ, *transcripts.NOT_JUDGED.values(), transcripts.DCGM_HEALTH]
    texts += [transcripts.dcgm_diag("Fail - GPU: 1"), transcripts.dcgm_diag_json("Fail", version=4)]
    return "\n".join(texts).encode()


def bug_report() -> bytes:
    """`nvidia-bug-report.log` with some sections."""
    ruler = b"\n" + b"_" * 44 + b"\n\n"
    head = b"Start of NVIDIA bug report log file.  Please include this file\nnvidia-bug-report.sh Version: 1\n"
    sections = (dump("smi-q-v100-390.txt"), dump("lspci-2-gpus.txt"), kernel_log())
    return head + b"".join(ruler + section for section in sections) + ruler


def as_yaml(node: Node) -> bytes:
    import yaml

    return yaml.safe_dump(msgspec.json.decode(to_json(node)), sort_keys=False).encode() + b"...\n"


@cache
def report() -> Report:
    return judge(broken_node(), question=Question(checks=registry(), level="quick"), include_facts=True)


@cache
def report_json() -> bytes:
    return render_json(report()).encode()


@cache
def bundle() -> bytes:
    return pack(files_of(broken_node(), redact=False, made_s=1e9), 10**9)


@cache
def stream() -> bytes:
    """A recorded `gpudoctor watch`."""
    ticks = [
        Tick(
            at_s=1e9 + second,
            gpus=(GpuTick(0, {"power_w": 350.5, "temperature_c": 50}, ("idle",), {"pcie_replays": 0}, 18, 18),),
            host=HostTick(12.5, 96, 1000.0, 2000.0, 1.0),
            processes=(ProcessTick(0, 4711, "python", command="python train.py"),),
        )
        for second in range(3)
    ]
    opening = Opening("gpudoctor.watch/1", 1e9, 1.0, broken_node())
    return b"".join(msgspec.json.encode(line) + b"\n" for line in (opening, *ticks))


CONFIG = b"""level: quick
fail_on: warn
deadline_s: 20
skip: [collective, "train.*"]
require: [gpu.ecc]
expect: {gpus: 8}
thresholds:
  gpu.temperature: {warn_margin_c: 10}
suppress:
  - {check: gpu.persistence, reason: "set at boot", until: 2027-01-31}
"""
