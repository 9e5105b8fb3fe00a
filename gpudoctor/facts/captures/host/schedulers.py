"""Slurm's, Kubernetes' and Docker's view: `scontrol show node`, `sinfo`, `kubectl`; `docker inspect`, `docker info`."""

from __future__ import annotations

import re
from typing import Any

from gpudoctor.facts.captures import clipped
from gpudoctor.facts.captures.reader import Block, Part, TextReader, key_value, text_reader
from gpudoctor.facts.model.node import Host, Node, Scheduler

_SCONTROL = re.compile(r"NodeName=(\S{1,253}) ")
_FIELD = re.compile(r"\b(State|Gres|CfgTRES)=(\S+)")
_REASON = re.compile(r"\bReason=(.{1,300}?)\s*$")
_SET_BY = re.compile(r"\s*\[[^\]\s]{1,80}@[^\]]{1,40}\]$")
_OS = re.compile(r"\bOS=Linux (\d{1,2}\.\d{1,3}\.\S{1,80})")
_GRES_GPUS = re.compile(r"(?:^|,)gpu(?::[A-Za-z][\w.-]{0,60})?:(\d{1,3})(?=[,(]|$)")
_SINFO = re.compile(r"(?:PARTITION\s.*\bSTATE\b|NODELIST\s.*\bSTATE\b|REASON\s.*\bNODELIST\b)")
_NODE_LIST_OF_ONE = re.compile(r"[\w.-]{1,253}$")
_CONDITION = re.compile(r"\s+([A-Z]\w{2,60})\s+(True|False|Unknown)\s+(.*)")
# "KernelReady"; most others are problems: "MemoryPressure", "NetworkUnavailable", "GpuNotReady"
_CONDITION_OF_HEALTH = re.compile(r"(?<!Not)(?:Ready|Healthy|Available)$")
_QUANTITY = re.compile(r"\s+nvidia\.com/gpu:\s+(\d{1,4})\s*$")
_SCHEDULABLE = re.compile(r"Unschedulable:\s+(true|false)")
_VERSION = re.compile(r"\s+Kernel Version:\s+(\S{1,80})\s*$")


def read_scontrol(block: Block) -> Part:
    """`scontrol show node NAME`. Output about several nodes is not used, because only one machine is judged."""
    names = {found[1] for line in block.lines if (found := _SCONTROL.match(line))}
    if len(names) > 1:
        return Part(notes=(f"scontrol: {len(names)} nodes in one text: show the one that is judged",))
    leaves: dict[str, Any] = {"name": next(iter(names))} if names else {}
    host: dict[str, Any] = {}
    for line in block.lines:
        for key, value in _FIELD.findall(line):
            if key == "State":
                leaves["state"] = value.lower()
            elif key == "Gres":
                counts = [int(number) for number in _GRES_GPUS.findall(value.split("(null)")[0])]
                leaves["gpus_configured"] = sum(counts)
            elif "gres/gpu=" in value:
                leaves["gpus_allocatable"] = int(value.partition("gres/gpu=")[2].partition(",")[0][:4] or 0)
        if found := _REASON.search(line):
            leaves["reason"] = _SET_BY.sub("", found[1])
        if found := _OS.search(line):
            host["kernel"] = found[1]
    return Part(Node(scheduler=Scheduler(kind="slurm", **leaves), host=Host(**host)))


_STATES = (
    r"(?:idle|alloc|mix|drain|drng|down|fail|maint|resv|reserved|unk|comp|boot|inval|planned|plnd)"
    r"[a-z]*[*~#!%$@^+-]{0,2}"
)
# sinfo -o "%D %t %N", pasted without its header
_WITHOUT_HEADER = re.compile(rf"\s*\d{{1,6}}\s+{_STATES}\s+[\w.-]{{1,100}}\[[\d,-]{{1,500}}\]\s*$")
# a row of sinfo -R without its header: with one of the reasons that Slurm itself gives
_REASON_ROW = re.compile(
    r"(?:Kill task failed|Not responding|Node unexpectedly rebooted|Low RealMemory|Prolog error|Epilog error"
    r"|gres/gpu count)\b.{0,120}?\s[\w.-]{1,40}\s+\d{4}-\d\d-\d\dT[\d:]{8}\s+[\w.,\[\]-]{1,300}\s*$"
)
_AWAY = re.compile(r"down|drain|drng|fail|inval|unk|[a-z]{1,12}\*")


def read_sinfo(block: Block) -> Part:
    """`sinfo` in its usual forms, if all its rows are about one node."""
    header: list[str] = []
    rows: list[dict[str, str]] = []
    for line in block.lines:
        if _SINFO.match(line):
            header = line.split()
            continue
        if not header and _WITHOUT_HEADER.match(line):
            header = ["NODES", "STATE", "NODELIST"]
        elif not header and _REASON_ROW.match(line):
            header = ["REASON", "USER", "TIMESTAMP", "NODELIST"]
        if header and (words := line.split()):
            # a reason contains spaces: the columns after it are counted from the right
            if header[0] == "REASON":
                words = [" ".join(words[: 1 - len(header)]), *words[1 - len(header) :]]
            rows.append(dict(zip(header, words, strict=False)))
    names = {row.get("NODELIST", "") for row in rows}
    if len(names) != 1 or not _NODE_LIST_OF_ONE.match(name := names.pop()):
        away = [
            f"{row['STATE']} {row.get('NODELIST', '')}" for row in rows if _AWAY.match(row.get("STATE", "").lower())
        ] + [f"{row.get('NODELIST', '')} {row['REASON']}" for row in rows if "STATE" not in row and "REASON" in row]
        told = clipped(f": {'; '.join(dict.fromkeys(away))}") if away else ""
        return Part(notes=(f"sinfo: the text is not of one node only{told}",))
    states = {row["STATE"].lower() for row in rows if "STATE" in row}
    reasons = [row["REASON"] for row in rows if row.get("REASON", "none") != "none"]
    leaves: dict[str, Any] = {"name": name}
    if len(states) == 1:
        leaves["state"] = states.pop()
    elif header[:1] == ["REASON"]:
        leaves["state"] = "down or drained"  # sinfo -R lists no other nodes
    if reasons:
        leaves["reason"] = reasons[0]
    return Part(Node(scheduler=Scheduler(kind="slurm", **leaves)))


def read_kubectl(block: Block) -> Part:
    """`kubectl describe node NAME`: its GPUs, those that can be allocated, and the conditions that are not healthy.

    Output about several nodes is not used.
    """
    nodes = sum(line.startswith("Roles:") for line in block.lines)
    if nodes > 1:
        return Part(notes=(f"kubectl: {nodes} nodes in one text: show the one that is judged",))
    leaves: dict[str, Any] = {}
    host: dict[str, Any] = {}
    section = ""
    bad: list[str] = []
    for line in block.lines:
        if not line[:1].isspace():
            section = line.partition(":")[0]
            if (found := _SCHEDULABLE.match(line)) and found[1] == "true":
                leaves["state"] = "unschedulable"
            elif section == "Name" and (name := line.partition(":")[2].strip()):
                leaves["name"] = name
        elif found := _QUANTITY.match(line):
            if section in ("Capacity", "Allocatable"):
                leaves["gpus_configured" if section == "Capacity" else "gpus_allocatable"] = int(found[1])
        elif found := _VERSION.match(line):
            host["kernel"] = found[1]
        elif section == "Conditions" and (condition := _CONDITION.match(line)):
            kind, status, rest = condition.groups()
            if kind == "Ready":
                if leaves.get("state") != "unschedulable":
                    leaves["state"] = "ready" if status == "True" else "not-ready"
                well = status == "True"
            else:
                well = status == ("True" if _CONDITION_OF_HEALTH.search(kind) else "False")
            if not well:
                bad.append(f"{kind} {status}: {' '.join(rest.split())[-120:]}")
    if bad:
        leaves["conditions"] = tuple(bad)
    told = Scheduler(kind="kubernetes", **leaves)
    return Part(Node(scheduler=told, host=Host(**host)))


# `kubectl get node -o yaml` or json
_STATUS = re.compile(r'\s*"?(allocatable|capacity)"?:\s*(?:\{\s*)?$')
_STATUS_GPUS = re.compile(r'\s*"?nvidia\.com/gpu"?: *"?(\d{1,4})"?')


def read_kubectl_status(block: Block) -> Part:
    """The GPUs under `allocatable:` and `capacity:`; nothing if one of them is there twice, as of several nodes."""
    found: dict[str, list[int]] = {"allocatable": [], "capacity": []}
    section = ""
    for line in block.lines:
        if status := _STATUS.match(line):
            section = status[1]
        elif section and (gpus := _STATUS_GPUS.match(line)):
            found[section].append(int(gpus[1]))
    if max(map(len, found.values())) > 1:
        return Part(notes=("kubectl: several nodes in one text: show the one that is judged",))
    leaves: dict[str, Any] = {}
    for section, leaf in (("allocatable", "gpus_allocatable"), ("capacity", "gpus_configured")):
        if found[section]:
            leaves[leaf] = found[section][0]
    return Part(Node(scheduler=Scheduler(kind="kubernetes", **leaves))) if leaves else Part()


SCHEDULER_READERS: tuple[TextReader, ...] = (
    text_reader("scontrol show node", _SCONTROL.match, r"NodeName=|\s+[A-Z]\w{1,30}=", read_scontrol),
    text_reader(
        "sinfo",
        lambda line: _SINFO.match(line) or _WITHOUT_HEADER.match(line) or _REASON_ROW.match(line),
        # a row has a state after the number of nodes, or ends in the time and the list of nodes
        rf"\S+\s+(?:(?:up|inact|down|drain)\s+\S+\s+)?\d{{1,6}}\s+(?:\S+\s+)?{_STATES}(?:\s|$)"
        r"|\S.*\s\d{4}-\d\d-\d\dT[\d:]{8}\s+\S+\s*$",
        read_sinfo,
    ),
    text_reader(
        "kubectl describe node",
        r"(?:Roles|Unschedulable|ProviderID|Capacity|Allocatable|Taints):(?:\s|$)",
        r"(?:Name|Labels|Annotations|CreationTimestamp|Lease|Conditions|Addresses|System Info|PodCIDRs?"
        r"|Non-terminated Pods|Allocated resources|Events):(?:\s|$)|\s+\S",
        read_kubectl,
        after=r"kubectl describe nodes?\b",
    ),
    text_reader(
        "kubectl get node",
        _STATUS.match,
        r'\s*"?[\w./-]{1,100}"?: *"?[\w.]{1,40}"?,?\s*$|\s*\},?\s*$',
        read_kubectl_status,
    ),
)


# Docker.

_NUMBER = re.compile(r'\s*"(ShmSize|Memory|NanoCpus|CpuQuota|CpuPeriod)": (-?\d{1,18}),?\s*$')
_IPC = re.compile(r'\s*"IpcMode": "([^"]{0,80})"')
_ULIMIT = re.compile(r'"(Name|Hard|Soft)": ?"?([\w-]{1,20})"?')
# `docker info` -> leaves of Host
_INFO_LEAVES = {"Kernel Version": "kernel", "Operating System": "os_name", "Architecture": "machine"}
_MEMORY = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(Ki|Mi|Gi|Ti)B$")
_MIB = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024, "Ti": 1024**2}


def read_inspect(block: Block) -> Part:
    """`docker inspect`: the container's /dev/shm (unless it is shared), memory limit, CPU quota and ulimits."""
    containers = sum('"HostConfig":' in line for line in block.lines)
    if containers > 1:
        return Part(notes=(f"docker inspect: {containers} containers in one text: show the one that is judged",))
    numbers: dict[str, int] = {}
    leaves: dict[str, Any] = {}
    shared = False
    for line in block.lines:
        if found := _NUMBER.match(line):
            numbers.setdefault(found[1], int(found[2]))
        elif ipc := _IPC.match(line):
            shared = ipc[1] == "host" or ipc[1].startswith("container:")
    if (size := numbers.get("ShmSize", 0)) > 0 and not shared:
        leaves["shm_mib"] = size >> 20
    if (limit := numbers.get("Memory")) is not None:
        leaves["memory_limit_mib"] = limit >> 20 if limit > 0 else None
        leaves["memory_limit_source"] = "docker inspect"
    if (cpus := numbers.get("NanoCpus", 0)) > 0:
        leaves["cpu_quota"] = cpus / 1e9
        leaves["cpu_quota_source"] = "docker inspect"
    soft = _ulimits(block.text)
    if "memlock" in soft:
        leaves["memlock_kib"] = None if soft["memlock"] < 0 else soft["memlock"] >> 10
    if soft.get("nofile", -1) >= 0:
        leaves["open_files"] = soft["nofile"]
    return Part(Node(host=Host(**leaves))) if leaves else Part()


def _ulimits(text: str) -> dict[str, int]:
    """Soft limits by name. Docker prints Name, Hard and Soft of each, in this order."""
    soft: dict[str, int] = {}
    name = ""
    for key, value in _ULIMIT.findall(text.partition('"Ulimits"')[2].partition("]")[0]):
        if key == "Name":
            name = value
        elif key == "Soft" and re.fullmatch(r"-?\d{1,18}", value):
            soft[name] = int(value)
    return soft


def read_info(block: Block) -> Part:
    """`docker info`: kernel, operating system, CPUs and memory of the host; whether its storage is full."""
    leaves: dict[str, Any] = {}
    reported: tuple[str, ...] = ()
    for line in block.lines:
        key, value = key_value(line) or ("", "")
        if key in _INFO_LEAVES and value:
            leaves[_INFO_LEAVES[key]] = value
        elif key == "CPUs" and value.isdecimal():
            leaves["cpus_total"] = int(value[:6])
        elif key == "Data Space Available" and re.match(r"0(?:\.0{1,3})? ?\w?B", value):
            reported = ("docker info: no data space is left for containers and images",)
        elif key == "Total Memory" and (size := _MEMORY.match(value)):
            leaves["ram_mib"] = round(float(size[1]) * _MIB[size[2]])
    return Part(Node(host=Host(**leaves)), reported=reported) if leaves or reported else Part()


CONTAINER_READERS: tuple[TextReader, ...] = (
    text_reader(
        "docker inspect",
        r'\s*"(?:ShmSize|IpcMode|HostConfig|DeviceRequests|OomKillDisable|CgroupnsMode)":',
        r'\s*(?:"[^"]{0,200}"(?::|,?\s*$)|[\]\[{}]{1,2},?\s*$|(?:-?\d{1,18}|true|false|null),?\s*$)',
        read_inspect,
        after=r"docker (?:container )?inspect\b",
    ),
    text_reader(
        "docker info",
        r"\s*(?:Server Version|Runtimes|Default Runtime|Cgroup Driver|Storage Driver): \S",
        r"(?:Client|Server)(?:: .{0,80}|:)$|\s+\S|(?:Cgroup Version|Kernel Version|Operating System|OSType|Architecture"
        r"|CPUs|Total Memory|Docker Root Dir): ",
        read_info,
        after=r"docker info\s*$",
    ),
)
