"""Limits of a container, from `docker inspect`."""

from __future__ import annotations

import re
from typing import Any

from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.model.node import Host, Node

_NUMBER = re.compile(r'\s*"(ShmSize|Memory|NanoCpus|CpuQuota|CpuPeriod)": (-?\d{1,18}),?\s*$')
_IPC = re.compile(r'\s*"IpcMode": "([^"]{0,80})"')
# in this order
_ULIMIT = re.compile(r'"Name": ?"([\w-]{1,20})",\s*"Hard": ?-?\d{1,18},\s*"Soft": ?(-?\d{1,18})')


@text_reader(
    "docker inspect",
    r'\s*"(?:ShmSize|IpcMode|HostConfig|DeviceRequests|OomKillDisable|CgroupnsMode)":',
    r'\s*(?:"[^"]{0,200}"(?::|,?\s*$)|[\]\[{}]{1,2},?\s*$|(?:-?\d{1,18}|true|false|null),?\s*$)',
    after=r"docker (?:container )?inspect\b",
)
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
    soft = {name: int(value) for name, value in _ULIMIT.findall(block.text)}
    if "memlock" in soft:
        leaves["memlock_kib"] = None if soft["memlock"] < 0 else soft["memlock"] >> 10
    if soft.get("nofile", -1) >= 0:
        leaves["open_files"] = soft["nofile"]
    return Part(Node(host=Host(**leaves)))
