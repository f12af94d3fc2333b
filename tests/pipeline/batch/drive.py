"""A batch in a process of its own, with a pipeline that writes down what it is asked for.

python -m tests.pipeline.batch.drive FILE OUT LOG [--seconds S] [--hold N] [--real]
    [--workers N] [--ray [ADDRESS]]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from holdfast.pipeline.batch import LOCAL_RAY, Batch, Lines, Options, WorkerOptions, form_of, read
from tests.pipeline.batch.fakes import FakeLoad, LoggedLoad

# So small that the model is not what takes the time.
SMALL = {"height": 32, "width": 32, "steps": 4}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("out", type=Path)
    parser.add_argument("log")
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--hold", type=int)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ray", nargs="?", const=LOCAL_RAY)
    args = parser.parse_args()
    fake = FakeLoad(args.log, args.seconds, hold=args.hold)
    batch = Batch(
        read(Path(args.file).read_text(), form_of(args.file), args.file),
        Options(model="tiny-flux", defaults=SMALL if args.real else {}),
        WorkerOptions(
            device="cpu",
            workers=args.workers,
            ray=args.ray,
            load=LoggedLoad(args.log) if args.real else fake,
        ),
        args.out,
        args.file,
    )
    try:
        summary = batch.run(Lines(sys.stderr))
    except KeyboardInterrupt:
        return 130
    print(summary)
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
