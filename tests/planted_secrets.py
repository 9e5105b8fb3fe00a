"""Seventy-five secrets of different shapes, in texts as drivers, kernels and programs print them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# secret -> a text that contains it. Redaction must recognise it by its shape or place: nothing else marks it
SECRETS = {
    "amelie@lab.example.org": "asked {} for it",
    "amelie@lab": "asked {} for it",
    "hunter2-pw": "fetched https://amelie:{}@10.0.0.5/data",
    "amelie-in-url": "fetched https://{}@registry.example/x",
    "minio.lab-7": "fetched s3://{}/train.tar",
    "hopper17.lab.example.org": "no route to {}",
    "login-1.cluster.local": "no route to {}",
    "gpu-a.prod.internal": "no route to {}",
    "node3.uni-example.de": "no route to {}",
    "10.20.30.41": "connect to {} failed",
    "192.168.7.9": "connect to {}:29500 failed",
    "fe80::9a03:9bff:fe12:3456": "from {}",
    "2001:db8:1:2:3:4:5:6": "from {}",
    "98:03:9b:12:34:56": "address {}",
    "98-03-9b-12-34-57": "address {}",
    "9803.9b12.3458": "address {}",
    "80:00:02:08:fe:80:00:00:00:00:00:00:98:03:9b:03:00:12:34:56": "address {}",
    "0x98039b0300123456": "node guid {}",
    "98039b0300123457": "node guid {}",
    "9803:9b03:0012:3458": "node guid {}",
    "0xe41d2d0300ab12cd": "sys_image_guid: {}",
    "i-0abc1234def567890": "instance {}",
    "vol-0abc1234def567891": "disk {}",
    "ip-10-20-30-42": "host {}",
    "3f2a9c81d0e4b7a65c1f0e9d8b7a6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b": "in docker-{}.scope",
    "3f2a9c81d0e4": "container {} died",
    "0f1e2d3c4b5a69788796a5b4c3d2e1f0": "machine {}",
    "da39a3ee5e6b4b0d3255bfef95601890afd80709": "image {}",
    "kubepods-burstable-podsecret": "/sys/fs/cgroup/{}/memory.max says 1",
    "amelie_slice": "/sys/fs/cgroup/user.slice/{}/cpu.max says 1",
    "/home/amelie": "{}/train.py is gone",
    "/home/bernd": "{} is full",
    "/scratch/proj_x/run7": "{} is full",
    "/run/user/1000/amelie-sock": "{} is gone",
    "/run/amelie.sock": "{} is gone",
    "/dev/shm/amelie_cache": "{} is full",
    "/usr/local/amelie/bin": "{} is gone",
    "/opt/startup-x": "{}/bin is gone",
    "/mnt/nas-amelie": "{} is stale",
    "/var/log/amelie.log": "{} is gone",
    "/tmp/amelie.tmp.d/x": "{} is gone",
    "~amelie/runs": "{} is gone",
    "~/secret-runs": "{} is gone",
    "~bernd": "{} is gone",
    "./private/run.sh": "{} failed",
    "../amelie/data": "{} failed",
    "proj_y/train_secret.py": "{} failed",
    "conf/amelie/model.yaml": "{} failed",
    "1654922003414": "GPU serial number: {} is gone",
    "SN-A1B2C3D4": "Serial: {}",
    "1320-9921-77A": "s/n {}",
    "llm_secret, part 2": "NVRM: Xid (PCI:0000:18:00): 31, pid=77, name={}, Ch 00000008",
    "a, b secret.bin": "NVRM: Xid (PCI:0000:18:00): 13, pid=77, name={}",
    "'quoted, secret'": "NVRM: Xid (PCI:0000:18:00): 13, pid='77', name={}",
    "comm_of_amelie": 'audit: comm="{}"',
    "31337133": "NVRM: Xid (PCI:0000:18:00): 13, pid={}, name=x",
    "2b7e1516-28ae-d2a6-abf7-158809cf4f3c": "uuid {}",
    "GPU-deadbeef-28ae-d2a6-abf7-158809cf4f3d": "GPU {}",
    "MIG-feedbeef-28ae-d2a6-abf7-158809cf4f3e": "instance {}",
    "nfs.lab-example.edu:/exports/amelie": "mount {}",
    "/proc/4711/root/home/carla": "{} is gone",
    "/usr/lib/../../home/dora": "{} is gone",
    "/etc/../exports-of-emil/x": "{} is gone",
    "//filer7/projects/amelie": "mount {}",
    "train_of_amelie.py": 'File "{}", line 3, in main',
    "peer-of-amelie": "NCCL WARN socketProgress: Connection closed by remote peer {}<43211>",
    "a100-node-042": "connect to {}:2379 failed",
    "hf_AbCdEfGhIjKlMnOp": "asked with {}",
    "ghp_AbCdEfGhIjKlMnOp1234": "asked with {}",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln": "asked with {}",
    "hunter2-of-amelie": "WANDB_API_KEY={} was refused",
    "hunter3-of-amelie": "password: {}",
    "hunter4-of-amelie": "Authorization: Bearer {}",
    "MT2012X01234": "SN: {}",
    "4e2a9c81d0e4": "docker-{} died",
}

# what the type of a leaf allows no free text in
FIXED = frozenset(
    (
        *("schema", "kind", "iommu", "virtualization", "state", "remote_kind"),
        *("compute_mode", "storage_class", "p2p_read", "p2p_write"),
    )
)


def planted(value: Any, plant: Callable[[str, str], str], key: str = "", but: str = "") -> Any:
    """The same facts as JSON values, with `plant(key, text)` in every leaf that holds text, except below `but`."""
    if isinstance(value, dict):
        return (
            value if but and key == but else {name: planted(inner, plant, name, but) for name, inner in value.items()}
        )
    if isinstance(value, list):
        return [planted(inner, plant, key, but) for inner in value]
    return plant(key, value) if isinstance(value, str) and key not in FIXED else value
