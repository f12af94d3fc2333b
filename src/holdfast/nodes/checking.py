"""Check over HTTP whether a running ComfyUI has all of the pack, in this version.

Compares nodes, web files, translations, templates and routes. Only reads: nothing is queued or
changed.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.codec import about
from holdfast.base.errors import BadInput, OutOfTime, Unsupported
from holdfast.nodes import (
    EXAMPLE_WORKFLOWS,
    LOCALES,
    NODE_CLASS_MAPPINGS,
    NODE_DISPLAY_NAME_MAPPINGS,
    WEB,
    routes,
)

SHOWN = 8  # problems listed for one part
AGAIN = "start ComfyUI again; then look at what it prints about custom_nodes/holdfast"
RENEW = "holdfast comfy install DIR (ComfyUI's folder), then start ComfyUI again"
RELOAD = "start ComfyUI again: it runs another version of Holdfast than this command"
_START = "python main.py --listen 127.0.0.1 --port 8188    (in ComfyUI's folder)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPart:
    """One part of the pack, as ComfyUI has it."""

    name: str = about("nodes, web, translations, templates or routes")
    state: str = about("ok, missing (some or all of it) or different (from this version)")
    found: str = about("what was found, such as 24 of 24")
    problems: tuple[str, ...] = about("each that was found, the first few", default=())
    advice: str | None = about("what to try", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCheck:
    """The result of a check."""

    url: str
    comfyui: str = about("its version, Python, torch and device")
    parts: tuple[PackPart, ...]

    @property
    def ok(self) -> bool:
        return all(part.state == "ok" for part in self.parts)


def check(url: str, timeout_s: float = 30.0) -> PackCheck:
    """Check the ComfyUI at `url`, waiting at most `timeout_s` for each answer.

    Raises BadInput for a bad URL, Unsupported if no ComfyUI answers, OutOfTime.
    """
    comfyui = ComfyUI(url, timeout_s)
    system = comfyui.json("/system_stats")
    info = comfyui.json("/object_info")
    parts = [_check_nodes(info)]
    pack = _pack(info)
    if pack is not None:  # without any node the rest is missing too
        parts += [
            _check_web(comfyui, pack),
            _check_translations(comfyui),
            _check_templates(comfyui, pack),
            _check_routes(comfyui),
        ]
    return PackCheck(url=comfyui.url, comfyui=_describe(system), parts=tuple(parts))


# ---- nodes


def _check_nodes(info: Mapping[str, Any]) -> PackPart:
    missing = [name for name in NODE_CLASS_MAPPINGS if name not in info]
    different = [
        f"{name}: {difference}"
        for name in NODE_CLASS_MAPPINGS
        if name in info
        for difference in differences(name, info[name])
    ]
    if len(missing) == len(NODE_CLASS_MAPPINGS):
        return PackPart(name="nodes", state="missing", found="none of them", advice=RENEW)
    advice = AGAIN if missing else RELOAD
    return _make_part("nodes", len(NODE_CLASS_MAPPINGS), missing, different, advice)


def differences(name: str, info: Mapping[str, Any]) -> list[str]:
    """How ComfyUI's description of a node differs from its class."""
    wanted = expected(name)
    found = [key for key in wanted if key != "input" and info.get(key) != wanted[key]]
    texts = [f"{key} is {info.get(key)!r}, not {wanted[key]!r}" for key in found]
    ours, theirs = _sockets(wanted["input"]), _sockets(info.get("input", {}))
    texts += [f"input {socket} is not there" for socket in ours if socket not in theirs]
    texts += [f"input {socket} is not ours" for socket in theirs if socket not in ours]
    texts += [
        f"input {socket} is {theirs[socket]!r}, not {ours[socket]!r}"
        for socket in ours
        if socket in theirs and not _same(ours[socket], theirs[socket])
    ]
    return texts


def expected(name: str) -> dict[str, Any]:
    """The description of a node that ComfyUI should return, as decoded JSON."""
    node = NODE_CLASS_MAPPINGS[name]
    inputs = node.INPUT_TYPES()
    described = {
        "input": inputs,
        "input_order": {kind: list(sockets) for kind, sockets in inputs.items()},
        "output": node.RETURN_TYPES,
        "output_name": node.RETURN_NAMES,
        "output_tooltips": node.OUTPUT_TOOLTIPS,
        "output_node": bool(getattr(node, "OUTPUT_NODE", False)),
        "name": name,
        "display_name": NODE_DISPLAY_NAME_MAPPINGS[name],
        "description": node.DESCRIPTION,
        "category": node.CATEGORY,
    }
    return json.loads(json.dumps(described))


def _sockets(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by kind and name ("required size_mb"), without hidden ones."""
    return {
        f"{kind} {name}": spec
        for kind in ("required", "optional")
        for name, spec in inputs.get(kind, {}).items()
    }


def _same(ours: Any, theirs: Any) -> bool:
    """Compare two inputs, but not lists of choices: those may be files of that ComfyUI."""
    if isinstance(ours[0], list) and isinstance(theirs[0], list):
        return ours[1:] == theirs[1:]
    return ours == theirs


def _pack(info: Mapping[str, Any]) -> str | None:
    """The name of our folder in custom_nodes."""
    modules = (info[name].get("python_module") for name in NODE_CLASS_MAPPINGS if name in info)
    return next((module.rpartition(".")[2] for module in modules if module), None)


# ---- files


def _check_web(comfyui: ComfyUI, pack: str) -> PackPart:
    """Check the files that the browser loads, and the help pages."""
    names = _list_files(WEB)
    loaded = set(comfyui.json("/extensions"))
    at = {name: f"/extensions/{urllib.parse.quote(f'{pack}/{name}')}" for name in names}
    unloaded = [n for n in names if n.endswith(".js") and f"/extensions/{pack}/{n}" not in loaded]
    answers = {name: comfyui.bytes(at[name]) for name in names if name not in unloaded}
    missing = unloaded + [name for name, data in answers.items() if data is None]
    different = [n for n, data in answers.items() if data not in (None, (WEB / n).read_bytes())]
    return _make_part("web", len(names), missing, _label_older(different), RELOAD)


def _check_translations(comfyui: ComfyUI) -> PackPart:
    """Check that ComfyUI's merged translations contain ours."""
    texts = comfyui.json("/i18n")
    names = [name for name in _list_files(LOCALES) if name.endswith(".json")]
    missing, different = [], []
    for name in names:
        language, _, file = name.partition("/")
        kind = file.removesuffix(".json")
        there = texts.get(language, {})
        there = there if kind == "main" else there.get(kind)
        ours = json.loads((LOCALES / name).read_text(encoding="utf-8"))
        if ours and not there:
            missing.append(name)
        elif ours and not _contains(there, ours):
            different.append(name)
    return _make_part("translations", len(names), missing, _label_older(different), RENEW)


def _check_templates(comfyui: ComfyUI, pack: str) -> PackPart:
    """Check the example workflows in ComfyUI's template browser."""
    names = [name for name in _list_files(EXAMPLE_WORKFLOWS) if name.endswith(".json")]
    listed = {f"{name}.json" for name in comfyui.json("/api/workflow_templates").get(pack, ())}
    missing = [name for name in names if name not in listed]
    different = []
    for name in (name for name in names if name in listed):
        data = comfyui.bytes(f"/api/workflow_templates/{urllib.parse.quote(f'{pack}/{name}')}")
        if data != (EXAMPLE_WORKFLOWS / name).read_bytes():
            different.append(name)
    return _make_part("templates", len(names), missing, _label_older(different), RENEW)


def _check_routes(comfyui: ComfyUI) -> PackPart:
    """Check the routes of the panel in the sidebar."""
    paths = (routes.LIVE, routes.PEAKS)
    missing = [path for path in paths if comfyui.bytes(path) is None]
    return _make_part("routes", len(paths), missing, [], AGAIN)


def _list_files(folder: Path) -> list[str]:
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(files)


def _label_older(names: list[str]) -> list[str]:
    return [f"{name}: not as in this version" for name in names]


def _contains(there: Any, ours: Any) -> bool:
    """Whether `there` contains all of `ours`; it has texts of other packs too."""
    if isinstance(ours, dict):
        return isinstance(there, dict) and all(_contains(there.get(k), v) for k, v in ours.items())
    return there == ours


def _make_part(
    name: str, total: int, missing: list[str], different: list[str], advice: str
) -> PackPart:
    """`different` are texts that begin with a name and a colon."""
    problems = [f"{one}: not there" for one in missing] + different
    if not problems:
        return PackPart(name=name, state="ok", found=f"all {total}")
    good = total - len({text.partition(":")[0] for text in problems})
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return PackPart(
        name=name,
        state="missing" if missing else "different",
        found=f"{good} of {total}",
        problems=(*problems[:SHOWN], *more),
        advice=advice,
    )


def _describe(system: Any) -> str:
    """ "ComfyUI 0.3.75, Python 3.11.2, torch 2.13.0, cpu"; what is unknown is left out."""
    about = system["system"]
    versions = {
        "ComfyUI": about.get("comfyui_version"),
        "Python": str(about.get("python_version", "")).partition(" ")[0],
        "torch": about.get("pytorch_version"),
    }
    devices = [device.get("name") for device in system.get("devices", ())]
    return ", ".join([*(f"{k} {v}" for k, v in versions.items() if v), *filter(None, devices)])


# ---- HTTP


def _parse_url(url: str) -> urllib.parse.SplitResult:
    """Parse a URL; http:// may be left out. Raises BadInput."""
    wrong = BadInput(
        f"cannot ask {url!r}: it is no address of a server",
        expected="a URL such as http://127.0.0.1:8188",
    )
    try:
        at = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if at.scheme in ("http", "https") and at.hostname and at.port != 0:
            return at
    except ValueError as exc:  # brackets, or a port that is no number
        raise wrong from exc
    raise wrong


class ComfyUI:
    """HTTP client for a running ComfyUI."""

    def __init__(self, url: str, timeout_s: float) -> None:
        at = _parse_url(url)
        self.url = at.geturl().rstrip("/")
        self._timeout_s = timeout_s
        # No proxy for this machine.
        host = at.hostname or ""
        local = host in ("localhost", "::1") or host.startswith("127.")
        handlers = [urllib.request.ProxyHandler({})] if local else []
        self._open: Callable[..., Any] = urllib.request.build_opener(*handlers).open

    def json(self, path: str) -> Any:
        """Get JSON. Raises Unsupported if the server is not a ComfyUI."""
        data = self.bytes(path)
        try:
            document = None if data is None else json.loads(data)
        except ValueError:
            document = None
        if isinstance(document, dict | list):
            return document
        raise Unsupported(
            f"what answers at {self.url} is no ComfyUI: it has no {path}",
            expected="the address that ComfyUI prints when it starts",
        )

    def bytes(self, path: str) -> bytes | None:
        """Get a path; None if it does not exist. Raises Unsupported, OutOfTime."""
        try:
            with self._open(self.url + path, timeout=self._timeout_s) as answer:
                return answer.read()
        except urllib.error.HTTPError as exc:
            exc.close()
            return None
        except (OSError, http.client.HTTPException, ValueError) as exc:
            reason = exc.reason if isinstance(exc, urllib.error.URLError) else exc
            if isinstance(reason, TimeoutError):
                raise OutOfTime(
                    f"ComfyUI at {self.url} has not answered {path} in {self._timeout_s:g} s",
                    expected="an answer within --timeout",
                    hint=f"--timeout {2 * self._timeout_s:g}, when it is not busy",
                ) from exc
            about = getattr(reason, "strerror", None) if reason is not exc else None
            raise Unsupported(
                f"no ComfyUI answers at {self.url}: {about or str(reason) or type(exc).__name__}",
                expected="the address of a ComfyUI that runs",
                hint=_START,
            ) from exc
