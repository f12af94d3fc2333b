"""Tile sizes and other kernel parameters: defaults by kind of device, and measured ones from disk.

Measured parameters are stored per device and driver; `gemm_search` measures, never a call. An
unusable file counts as absent. A file is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy

from holdfast.base.config import Config
from holdfast.base.files import write_whole
from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine

Settings = dict[str, int]

CLASSES = ("small", "square", "tall", "wide")
_SMALL = 256 * 256  # elements of a result
_LONG = 4  # times as many rows as columns, or the other way round

# Rows and columns of a work-group and of a work-item, and the step along the sum.
_BIG = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8}
_MIDDLE = {"BM": 64, "BN": 64, "BK": 16, "TM": 8, "TN": 4}
_TINY = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}  # builds quickly on a CPU
_GPU = {"small": _MIDDLE, "square": _BIG, "tall": _BIG, "wide": _BIG}
# Register tiles by vector length: MR rows of NV vectors.
_TILES = {16: {"MR": 12, "NV": 2}, 8: {"MR": 6, "NV": 2}, 4: {"MR": 6, "NV": 2}}
_LOW = 64  # output channels up to which half a tile suffices
_BLOCK = {"ROWS": 8, "COLUMNS": 4}  # tiles of one work-item
_ITEMS_EACH = 8  # work-items per core that balance the load
_LEAST_STEPS = 8  # of the summation loop, at least, for another work-group to pay


def size_class(m: int, n: int) -> str:
    """The size class of a product."""
    if m * n <= _SMALL:
        return "small"
    return "tall" if m >= _LONG * n else "wide" if n >= _LONG * m else "square"


def defaults(engine: CLEngine) -> dict[str, Settings]:
    """Parameters without measurement."""
    if engine.mapping == "gpu" and engine.place.kind == "cpu":
        return {name: dict(_TINY) for name in CLASSES}
    if engine.mapping == "gpu":
        return {name: dict(way) for name, way in _GPU.items()}
    width = engine.place.device.native_vector_width_float
    vector = 16 if width >= 16 else 8 if width >= 8 else 4
    return {name: {"VEC": vector, **_TILES[vector], **_BLOCK} for name in CLASSES}


def settings(engine: CLEngine, m: int, n: int) -> Settings:
    """Parameters of a product with a result of m rows and n columns."""
    return current(engine)[size_class(m, n)]


def current(engine: CLEngine) -> dict[str, Settings]:
    """The parameters in use by size class; changes apply from the next call on."""
    if not engine.tuned:
        engine.tuned.update({**defaults(engine), **load(engine)})
    return engine.tuned


# ---- on disk


def file_of(engine: CLEngine) -> Path:
    """The file with the measured parameters of a device."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", engine.place.device.name.strip()).strip("-")
    return Config.load().cache_dir / "opencl" / f"tuned-{name}.json"


def _identity(engine: CLEngine) -> dict[str, str]:
    device = engine.place.device
    return {"platform": device.platform.version, "driver": device.driver_version}


def _read(engine: CLEngine) -> dict[str, Any]:
    """The file's content if it is about this device with this driver, else {}."""
    try:
        found = json.loads(file_of(engine).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or found.get("made with") != _identity(engine):
        return {}
    return found


def load(engine: CLEngine) -> dict[str, Settings]:
    """Measured parameters that are valid for this device; {} if there are none."""
    found, plain = _read(engine).get(engine.mapping), defaults(engine)
    if not isinstance(found, dict):
        return {}
    return {
        name: dict(way)
        for name, way in found.items()
        if name in plain
        and isinstance(way, dict)
        and plain[name].keys() <= way.keys() <= {*plain[name], "CLBLAST"}
        and all(type(value) is int and value > 0 for value in way.values())
    }


def save(engine: CLEngine, found: dict[str, Settings]) -> None:
    """Store measured parameters. A folder that cannot be written is ignored."""
    content = {**_read(engine), "made with": _identity(engine)}
    content[engine.mapping] = {**content.get(engine.mapping, {}), **found}
    file = file_of(engine)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content, indent=2) + "\n")


# ---- products


def cpu_tile(engine: CLEngine, kind: numpy.dtype[Any], m: int = 1024, n: int = 1024) -> Settings:
    """The register tile for CPU-like devices: vectors of VEC elements, MR rows of NV vectors."""
    way = settings(engine, m, n)
    vector = way["VEC"] // 2 if kind == dtypes.FLOAT64 else way["VEC"]
    return {"VEC": vector, "MR": way["MR"], "NV": way["NV"]}


def cpu_block(engine: CLEngine, m: int, n: int, batches: int, tile: Settings) -> tuple[int, int]:
    """Rows and columns of one work-item, reduced if there would be too few work-items."""
    way = settings(engine, m, n)
    high, wide = tile["MR"], tile["NV"] * tile["VEC"]
    rows, columns = way["ROWS"], way["COLUMNS"]
    enough = _ITEMS_EACH * engine.units
    while (
        rows * columns > 1 and batches * -(-m // (rows * high)) * -(-n // (columns * wide)) < enough
    ):
        rows, columns = (rows // 2, columns) if rows > columns else (rows, columns // 2)
    return rows * high, columns * wide


def gpu_tile(engine: CLEngine, m: int, n: int) -> Settings:
    """The work-group tile for GPU-like devices."""
    return {name: value for name, value in settings(engine, m, n).items() if name != "CLBLAST"}


def gpu_split(engine: CLEngine, tiles: int, k: int, step: int) -> int:
    """How many work-groups share the sum of one tile; above 1 if there are few tiles."""
    split = 1
    while split < 16 and tiles * split * 2 <= engine.units and k >= split * 4 * step * _LEAST_STEPS:
        split *= 4
    return split


# ---- attention


def attention_tile(engine: CLEngine, width: int) -> Settings:
    """The tile for GPU-like devices; empty if none fits into local memory."""
    tiles = [
        {"BQ": queries, "BKV": 64, "RQ": 8, "TX": 16, "KC": 8, "VC": 8} for queries in (64, 32)
    ]
    if engine.place.kind == "cpu":
        tiles = [{"BQ": 16, "BKV": 32, "RQ": 4, "TX": 8, "KC": 8, "VC": 8}]
    for tile in tiles:
        if _attention_bytes(tile, width) <= engine.local_bytes:
            return tile
    return {}


def _attention_bytes(tile: Settings, width: int) -> int:
    """Local memory that attention_gpu.cl needs."""
    queries, across = tile["BQ"], 4 * tile["TX"]
    deep, wide = -(-width // tile["KC"]) * tile["KC"], -(-width // across) * across
    keys, values = 2 * tile["KC"] * (tile["BKV"] + 4), 2 * tile["VC"] * (wide + queries)
    return 4 * (deep * queries + max(keys, values, queries * (tile["TX"] + 1)))


# ---- convolution


def conv_tile(engine: CLEngine, results: int) -> Settings:
    """The tile for GPU-like devices, for `results` output channels per group."""
    if engine.place.kind == "cpu":
        return {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}
    high = 128 if results > _LOW else 64
    return {"BM": high, "BN": 128, "BK": 8, "TM": 8, "TN": 8}
