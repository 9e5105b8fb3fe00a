"""storage.mount, storage.space: do the file systems of a training answer, mounted as they should be, and with room?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_path
from gpudoctor.checks.core.unread import unread
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.storage import StorageDevice, StorageMount
from gpudoctor.text.units import GIB, MIB, gib_text, mib_text

DATA = "--data"  # the role of a path that the user named
# local to one machine: their reported size is right, and no other node fills them
LOCAL = ("nvme", "disk", "raid", "overlay", "memory")
_CLASS_WORDS = {
    "nvme": "local NVMe",
    "disk": "local disk",
    "raid": "several local disks",
    "network": "network",
    "parallel": "parallel file system",
    "object": "FUSE before an object store",
    "fuse": "FUSE",
    "overlay": "layers of a container",
    "memory": "in RAM",
    "other": "kind not known",
}
# file systems that become read-only after an error; others are made read-only by design
_SELF_PROTECTING = ("ext2", "ext3", "ext4", "f2fs", "btrfs")
# options that ext4 and XFS show after shutting down
_GIVEN_UP = ("emergency_ro", "shutdown")
_SERVER = (
    Advice("See whether the server answers.", "dmesg -T | grep -iE 'nfs|lustre|ceph|fuse' | tail; showmount -e SERVER"),
    Advice("Mount it anew once nothing uses it any more.", "umount -l MOUNTPOINT && mount MOUNTPOINT"),
)
_DISK = (
    Advice("See what the kernel says of the disk.", "dmesg -T | grep -iE 'ext4|btrfs|xfs|nvme|I/O error' | tail"),
    Advice("Check the file system while it is not mounted; if errors return, replace the disk.", "fsck -f DEVICE"),
)
_OURS = "gpudoctor's own choice"
_FAIL_MIB = Limit(64, "MiB", f"{_OURS}: less is no room for a socket, a log and a compiled kernel", name="fail_mib")
_WARN_GIB = Limit(
    10, "GiB", f"{_OURS}: the weights of a model of 5 billion parameters in bf16, once", name="warn_gib", status="warn"
)
_WARN_PCT = Limit(
    10,
    "%",
    f"{_OURS}: most file systems place files badly when fuller; a small one that is empty is none",
    name="warn_pct",
)
_WARN_INODES = Limit(
    10_000, "inodes", f"{_OURS}: an unpacked environment with torch has 30 000 files", name="warn_inodes", status="warn"
)
# roles of places that were not chosen for writing: the user may be on a disk that is meant for something else
_NOT_CHOSEN = {"working directory", DATA}


@check("storage.mount", title="What training reads and writes is mounted, and answers", impact="costs", needs_gpu=False)
def mounted(case: Case) -> Iterator[Finding]:
    """Fail for a mount that returns errors or was shut down by the kernel; warn of unusual or slow ones."""
    mounts = case.node.storage.mounts
    if isinstance(mounts, Missing):
        yield unread(NODE, "mounted file systems", mounts)
        return
    for mount in mounts:
        findings = [*_of_mount(mount), *_of_paths(mount), *_of_devices(mount)]
        text = f"{mount.fs_type}, {class_words(mount)}, used as {used_for(mount)}"
        yield from findings or [ok(subject_of(mount), Found(text), None, mount_evidence(mount))]


def subject_of(mount: StorageMount) -> Subject:
    return of_path(mount.point)


def is_data(mount: StorageMount) -> bool:
    """Whether the user named a path on it as data."""
    return any(DATA in path.roles for path in mount.paths)


def used_for(mount: StorageMount) -> str:
    """The roles for which it is checked: "HOME, TMPDIR"."""
    return ", ".join(dict.fromkeys(role for path in mount.paths for role in path.roles))


def mount_evidence(mount: StorageMount) -> Evidence:
    """Its line of the mount table, with at most 12 options."""
    options = ",".join(mount.options[:12])
    text = f"{mount.source} on {mount.point} type {mount.fs_type} ({options}): {class_words(mount)}"
    return Evidence("/proc/self/mountinfo", f"{text}; used as {used_for(mount)}")


def class_words(mount: StorageMount) -> str:
    return _CLASS_WORDS[mount.storage_class]


def bytes_text(size_bytes: float) -> str:
    return gib_text(size_bytes) if size_bytes >= GIB else mib_text(round(size_bytes / MIB) * MIB)


def _of_mount(mount: StorageMount) -> Iterator[Finding]:
    subject, evidence = subject_of(mount), mount_evidence(mount)
    if isinstance(mount.error, Missing):
        finding = unread(subject, f"{mount.fs_type}, used as {used_for(mount)}", mount.error)
        hung = mount.error.kind == "failed"
        yield unknown(subject, finding.reason or "", evidence, advice=_SERVER) if hung else finding
    elif mount.error is not None:
        broken, likely, advice = Found(f"it answers {mount.error}", mount.error), "its server is gone", _SERVER
        if "ESTALE" in mount.error:
            likely = "a stale handle: the server has lost the folder"
        elif mount.storage_class in LOCAL:
            likely, advice = "the disk has failed, or the file system shut itself down after an error", _DISK
        yield fail(subject, broken, "files can be looked up", evidence, likely=likely, advice=advice)
    elif set(mount.options) & set(_GIVEN_UP):
        what = Found("the file system has shut itself down after an error", "shutdown")
        yield fail(subject, what, "writable, as it was mounted", evidence, advice=_DISK)
    elif mount.system_read_only and not mount.read_only and mount.fs_type in _SELF_PROTECTING:
        yield warn(
            subject,
            Found("read-only, though it was mounted writable", "read-only"),
            "writable, as it was mounted",
            evidence,
            likely="the kernel made it so after an error, or it is bound from a file system that is read-only",
            advice=_DISK,
        )
    elif mount.storage_class == "overlay" and is_data(mount):
        yield warn(
            subject,
            Found("the data lies in the layers of the container", "overlay"),
            "a data set on a volume of its own",
            evidence,
            likely="the folder was not mounted into the container, or the data was copied into the image",
            advice=(Advice("Mount it.", "docker run -v /datasets:/datasets:ro ...   # Kubernetes: a volume"),),
        )


def _of_paths(mount: StorageMount) -> Iterator[Finding]:
    for path in mount.paths:
        if "TMPDIR" in path.roles and path.writable is False and mount.error is None:
            yield warn(
                of_path(path.path),
                Found("TMPDIR may not be written to by this user", "not writable"),
                "temporary files can be made",
                mount_evidence(mount),
                likely="a read-only root, or another user's folder: workers of data loaders and compilers need it",
                advice=(Advice("Name another folder.", "export TMPDIR=...   # in a container: --tmpfs /tmp"),),
            )
        if path.not_mounted is not None:
            yield warn(
                of_path(path.path),
                Found(f"a plain folder on {mount.point}: {path.not_mounted} is not mounted", path.not_mounted),
                f"{path.not_mounted} is mounted, as /etc/fstab says",
                Evidence("/etc/fstab", f"has {path.not_mounted}, and the mount table does not"),
                mount_evidence(mount),
                likely="the mount failed at boot, or its server was away: what is written here fills the system's disk",
                advice=(
                    Advice("Mount it.", f"mount {path.not_mounted}"),
                    Advice("See why it was not.", "journalctl -b -u '*.mount'"),
                ),
            )


def _of_devices(mount: StorageMount) -> Iterator[Finding]:
    for disk in known(mount.devices) or ():
        state = known(disk.controller_state)
        if state not in (None, "live"):
            yield warn(
                subject_of(mount),
                Found(f"{disk.name}: its controller is {state}", state),
                "live",
                Evidence(f"/sys/class/nvme of {disk.name}", str(state)),
                likely="the disk was reset, or has left the bus",
                advice=_DISK,
            )
        elif (narrow := _narrowed(disk)) is not None:
            yield warn(
                subject_of(mount),
                Found(f"{disk.name} runs at {narrow[0]}", known(disk.width), "lanes"),
                f"{narrow[1]}, which disk and slot can both do",
                Evidence(f"/sys/bus/pci/devices/{known(disk.bus_id)}", f"{narrow[0]}; maximum {narrow[1]}"),
                likely="the disk is not seated well, its cable is bad, or the BIOS splits the slot's lanes",
                advice=(
                    Advice("Compare link and slot.", f"sudo lspci -vvs {known(disk.bus_id)} | grep -i lnk"),
                    Advice("Power the node off for 30 seconds; still narrow: reseat the disk, try another bay."),
                ),
            )


def _narrowed(disk: StorageDevice) -> tuple[str, str] | None:
    """The link's state and its maximum, as text, if it is below that; None if not, or if slot or disk is unknown."""
    width, widths = known(disk.width), (known(disk.max_width), known(disk.slot_max_width))
    speed, speeds = known(disk.speed_gt_s), (known(disk.max_speed_gt_s), known(disk.slot_max_speed_gt_s))
    if width is None or speed is None or None in widths or None in speeds:
        return None
    can_width, can_speed = min(w for w in widths if w is not None), min(s for s in speeds if s is not None)
    if width >= can_width and speed >= can_speed:
        return None
    return f"x{width} at {speed:g} GT/s", f"x{can_width} at {can_speed:g} GT/s"


@check(
    "storage.space",
    title="There is room for checkpoints, caches and temporary files",
    impact="costs",
    needs_gpu=False,
    limits=(_FAIL_MIB, _WARN_GIB, _WARN_PCT, _WARN_INODES),
)
def space(case: Case) -> Iterator[Finding]:
    """Fail if a local file system that is written to is full, warn if it nearly is; read-only use needs no room."""
    mounts = case.node.storage.mounts
    if isinstance(mounts, Missing):
        yield unread(NODE, "mounted file systems", mounts)
        return
    for mount in mounts:
        yield _space_on(case, mount)


def _space_on(case: Case, mount: StorageMount) -> Finding:
    subject = subject_of(mount)
    if isinstance(mount.error, str):
        return skip(subject, f"it answers {mount.error}: see storage.mount")
    written = [path for path in mount.paths if path.roles != (DATA,)]
    denied = [path.writable for path in written if isinstance(path.writable, Missing)]
    if written and denied:
        return unread(subject, "whether it may be written to", denied[0])
    if not any(path.writable is True for path in written):
        return skip(subject, f"used as {used_for(mount)}: nothing is written there, or may not be")
    if isinstance(mount.total_bytes, Missing):
        return unread(subject, "its size", mount.total_bytes)
    if isinstance(mount.free_bytes, Missing):
        return unread(subject, "its free space", mount.free_bytes)
    return _room_on(case, mount, mount.total_bytes, mount.free_bytes)


def _room_on(case: Case, mount: StorageMount, total: int, free: int) -> Finding:
    """The verdict on free bytes, and on inodes unless the bytes are short enough to fail."""
    fail_below, warn_below = case.limit(_FAIL_MIB) * MIB, case.limit(_WARN_GIB) * GIB
    is_short = 100 * free / max(total, 1) < case.limit(_WARN_PCT)
    subject, expected = subject_of(mount), _at_least(warn_below, case.limit_source(_WARN_GIB))
    found = Found(f"{bytes_text(free)} free of {bytes_text(total)} ({class_words(mount)})", round(free / MIB), "MiB")
    evidence = Evidence(f"statvfs {mount.point}", f"{free} bytes free of {total}; used as {used_for(mount)}")
    if free < min(fail_below, warn_below):
        # a server may report any size; a small file system (tmpfs, /boot) may be meant to be small
        by_chance = {role for path in mount.paths if path.roles != (DATA,) for role in path.roles} <= _NOT_CHOSEN
        is_meant = not by_chance or total >= warn_below
        judge = fail if is_short and mount.storage_class in LOCAL and is_meant else warn
        full, small = "it is full, or will be with the next file", "it is small: a cache or a log may not fit"
        expected = _at_least(fail_below, case.limit_source(_FAIL_MIB))
        return judge(subject, found, expected, evidence, likely=full if is_short else small, advice=_room(mount))
    if (of_inodes := _inodes(case, mount)) is not None:
        return of_inodes
    if free < warn_below and is_short:
        return warn(subject, found, expected, evidence, likely="the next checkpoint may not fit", advice=_room(mount))
    return ok(subject, found, None if free < warn_below else expected, evidence)


def _at_least(least_bytes: float, source: str) -> Expected:
    return Expected(f"at least {bytes_text(least_bytes)}", ">=", round(least_bytes / MIB), "MiB", source)


def _inodes(case: Case, mount: StorageMount) -> Finding | None:
    """A finding if the file system runs out of inodes before bytes; None otherwise."""
    total, free, least = known(mount.inodes), known(mount.inodes_free), case.limit(_WARN_INODES)
    if not total or free is None or free >= least or free > total * case.limit(_WARN_PCT) / 100:
        return None
    worst = fail if free == 0 and mount.storage_class in LOCAL else warn
    return worst(
        subject_of(mount),
        Found(f"{free} inodes free of {total}", free, "inodes"),
        Expected(f"at least {least:.0f}", ">=", least, "inodes", case.limit_source(_WARN_INODES)),
        Evidence(f"statvfs {mount.point}", f"{free} of {total} inodes free; used as {used_for(mount)}"),
        likely="many small files: no further file can be made, whatever room there is",
        advice=(Advice("See which folder holds them.", f"du --inodes -xd2 {mount.point} | sort -n | tail"),),
    )


def _room(mount: StorageMount) -> tuple[Advice, ...]:
    return (
        Advice("See what fills it.", f"du -xhd2 {mount.point} | sort -h | tail"),
        Advice("Keep caches elsewhere.", "export HF_HOME=... TORCH_HOME=... TMPDIR=...   # on a larger file system"),
    )
