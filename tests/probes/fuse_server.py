"""A file system of one process: a shard of 64 MiB, each request for its data answered after some seconds."""

from __future__ import annotations

import errno
import stat
import sys
from time import sleep
from typing import Any

import mfusepy

SHARD = "/shard.bin"
SIZE_BYTES = 64 << 20


class OneShard(mfusepy.Operations):  # type: ignore[misc]
    use_ns = True

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def getattr(self, path: str, fh: object = None) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path == SHARD:
            return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": SIZE_BYTES}
        raise mfusepy.FuseOSError(errno.ENOENT)

    def readdir(self, path: str, fh: object) -> list[str]:
        return [".", "..", SHARD[1:]]

    def read(self, path: str, size: int, offset: int, fh: Any) -> bytes:
        sleep(self._delay_s)
        return bytes(min(size, SIZE_BYTES - offset))


if __name__ == "__main__":
    mfusepy.FUSE(OneShard(float(sys.argv[2])), sys.argv[1], foreground=True, nothreads=True)
