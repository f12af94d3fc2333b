"""Batches in processes of their own, which never outlive their test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.pipeline.batch.fakes import Drive

ROOT = Path(__file__).parents[3]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    """Start `drive` on prompts with options; pictures go to out, calls to log."""
    started: list[subprocess.Popen[bytes]] = []

    def start(prompts: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
        file = tmp_path / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        arguments = [str(file), str(tmp_path / "out"), str(tmp_path / "log"), *options]
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.batch.drive", *arguments],
            cwd=ROOT,
            # Short: Ray puts sockets there, whose paths may have 107 characters.
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": "/tmp"},
            start_new_session=True,  # a group of its own, as a terminal gives it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        if child.poll() is None:
            child.kill()
            child.communicate()
