"""How much memory there is."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

__all__ = ["available_memory"]


def available_memory() -> int:
    """Bytes this process could take: what the machine has left, and what its group and its own limits allow."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():  # a container or a batch job
            _, controllers, group = line.split(":", 2)
            folder, name = ("memory", "limit_in_bytes") if "memory" in controllers.split(",") else ("", "max")
            with suppress(OSError, ValueError):  # no such file, or "max"
                found.append(int(Path(f"/sys/fs/cgroup/{folder}{group}/memory.{name}").read_text()))
    if (own := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        found.append(own)
    return min(found)
