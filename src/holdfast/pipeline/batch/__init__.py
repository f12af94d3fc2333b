"""Many pictures from a file of prompts: resumes after a crash, spreads over GPUs and machines.

    file ──reading──▶ rows ──jobs──▶ jobs ──runner──▶ crew of workers (here, local, ray)
                                      ▲        │
                    what is done: folder ◀─────┘ pictures, then a line in the manifest

from holdfast.pipeline.batch import Batch, Hands, Options, read
rows = read(text, "json lines", "prompts.jsonl")
Batch(rows, Options(model="tiny-flux"), Hands(workers=2), Path("out"), "prompts.jsonl").run()
"""

from __future__ import annotations

from holdfast.pipeline.batch.batch import Batch, Hands, Summary
from holdfast.pipeline.batch.jobs import SUFFIXES, Job, Options, plan
from holdfast.pipeline.batch.reading import Row, form_of, read
from holdfast.pipeline.batch.runner import Failure
from holdfast.pipeline.batch.show import Bars, Lines, Show
from holdfast.pipeline.batch.workers import LOCAL_RAY

__all__ = [
    "LOCAL_RAY",
    "SUFFIXES",
    "Bars",
    "Batch",
    "Failure",
    "Hands",
    "Job",
    "Lines",
    "Options",
    "Row",
    "Show",
    "Summary",
    "form_of",
    "plan",
    "read",
]
