"""Many pictures from a file of prompts: resumes after a crash, spreads over GPUs and machines.

file ──reading──▶ rows ──jobs──▶ jobs ──runner──▶ pool of workers (here, local, ray)
                                  ▲        │
                what is done: folder ◀─────┘ pictures, then a line in the manifest

from holdfast.pipeline.batch import Batch, Options, WorkerOptions, read
rows = read(text, "json lines", "prompts.jsonl")
workers = WorkerOptions(workers=2)
Batch(rows, Options(model="tiny-flux"), workers, Path("out"), "prompts.jsonl").run()

batch           Batch: puts the parts together
reading         parses JSON lines, JSON lists and CSV into rows
jobs            turns rows into jobs with settings, seed, file name and identity
folder          the output folder: what is done, free names, atomic writes
manifest        the append-only record of finished jobs
runner          workers jobs to idle workers and keeps the results
workers         messages to a worker, the worker itself, the pool of workers
local           workers in processes of this machine
ray             workers on the machines of a Ray cluster
ray_guard       cleans up after a Ray cluster that was started for one batch
show            progress on standard error
ctrl_c          delays Ctrl-C over a critical block
"""

from __future__ import annotations

from holdfast.pipeline.batch.batch import Batch, Summary, WorkerOptions
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
    "Job",
    "Lines",
    "Options",
    "Row",
    "Show",
    "Summary",
    "WorkerOptions",
    "form_of",
    "plan",
    "read",
]
