"""Run every program of this folder in one process and write down what was found, as JSON.

A program ends with `LEAKS = check_memory_leaks()`. A line that leaks says so: `# leak: SIZE`, or
`# leak: SIZE x COUNT`, several with commas between. `# held by: WORDS` must be among the words.
With `--frozen`, holders are looked for among the objects of the program alone.
"""

from __future__ import annotations

import gc
import json
import re
import runpy
import sys
import traceback
import warnings
from pathlib import Path
from types import CodeType

from holdfast.memory.core import native_build
from holdfast.memory.debug import debugging

FOLDER = Path(__file__).parent
FROZEN = "--frozen"  # torch alone has half a million objects
_LEAK = re.compile(r"#\s*leak:\s*([\d x,]+)")
_HELD = re.compile(r"#\s*held by:\s*(.+?)\s*$", re.MULTILINE)


def programs() -> list[str]:
    """The names of all programs; those that need torch last, since it makes the heap large."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    return sorted(names, key=lambda name: name.startswith("torch"))


def expected(name: str) -> list[tuple[str, int]]:
    """(location, size) of each leak that a program announces."""
    path = FOLDER / f"{name}.py"
    text = path.read_text()
    code = compile(text, str(path), "exec")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LEAK.search(line)
        for part in match[1].split(",") if match else ():
            size, _, count = part.partition("x")
            where = f"{path}:{number} in {_function(code, number)}"
            found += [(where, int(size))] * int(count or 1)
    return sorted(found)


def held(name: str) -> list[str]:
    """Words that must be among those for who holds the leaks of a program."""
    return _HELD.findall((FOLDER / f"{name}.py").read_text())


def held_by_others(name: str) -> bool:
    """Whether something that was there before the program holds its leaks: `# held by others`."""
    return "# held by others" in (FOLDER / f"{name}.py").read_text()


def _function(code: CodeType, line: int) -> str:
    """The innermost function with an instruction on a line."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and (name := _function(inner, line)):
            return name
    body = list(code.co_lines())[1:]  # the first is the line of `def`
    return code.co_qualname if any(at == line for *_, at in body) else ""


def run(name: str) -> dict[str, object]:
    """What a program finds in itself."""
    debugging.enable_memory_debugging(False)
    gc.enable()
    gc.collect()
    gc.unfreeze()
    if FROZEN in sys.argv and not held_by_others(name):
        gc.freeze()
    debugging.enable_memory_debugging(True)
    try:
        leaks = runpy.run_path(str(FOLDER / f"{name}.py"), run_name=f"program_{name}")["LEAKS"]
    except BaseException:  # noqa: BLE001 - whatever it is, it belongs to this program
        return {"error": traceback.format_exc()}
    return {
        "leaks": sorted((leak.location, leak.size) for leak in leaks),
        "words": [words for leak in leaks for words in leak.referrers],
        "lines": [str(leak) for leak in leaks],
        "problems": [str(problem) for problem in debugging.problems()],
    }


if __name__ == "__main__":
    warnings.simplefilter("error")
    chosen = [name for name in sys.argv[1:] if name != FROZEN] or programs()
    results = {name: run(name) for name in chosen}
    print(json.dumps({"core": native_build.core().__name__, "programs": results}))
