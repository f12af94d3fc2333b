"""Limits of control groups, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

from holdfast.topology.control_groups import memory_left, memory_limit

GB = 10**9


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/box/job\n",
            "sys/fs/cgroup/box/memory.max": f"{8 * GB}\n",
            "sys/fs/cgroup/box/memory.current": f"{7 * GB}\n",
            "sys/fs/cgroup/box/memory.stat": f"anon {GB}\ninactive_file {2 * GB}\n",
            "sys/fs/cgroup/box/job/memory.max": f"{6 * GB}\n",
            "sys/fs/cgroup/box/job/memory.current": f"{GB}\n",
        },
    )
    assert memory_limit(root) == 6 * GB
    assert memory_left(root) == 3 * GB  # of the outer one: 8 less 7 that are used, 2 of them caches


def test_groups_of_the_first_version_are_read(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,memory:/job\n4:pids:/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GB}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{5 * GB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert memory_limit(root) == 4 * GB
    assert memory_left(root) == 0


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert memory_limit(root) is None
    assert memory_left(root) is None
