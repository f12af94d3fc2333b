"""What torch calls when it is imported and Holdfast is installed (entry point `torch.backends`).

Covers: whether to register the device unasked.
Leaves to others: registering (`registering`).
Promise: `import torch` never fails because of Holdfast: what goes wrong is a RuntimeWarning. A
program that never names the device does not get it: `torch.accelerator` knows of none until then.
Where there is another accelerator nothing is registered, because torch would take the device for
it; `import holdfast.torch` registers it there too. `TORCH_DEVICE_BACKEND_AUTOLOAD=0` turns it off.

This file imports nothing but the standard library: torch is still being imported when it runs.
"""

from __future__ import annotations

import warnings


def autoload() -> None:
    """Register the device, where that disturbs nobody."""
    try:
        if not _another_accelerator():
            from holdfast.compute.torch_device.registering import register

            register(asked=False)
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is no reason to have no torch
        warnings.warn(
            f"torch.device('holdfast') is not there: {_said(exc)} "
            "(TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops the attempt, and `import holdfast.torch` "
            "shows the error)",
            RuntimeWarning,
            stacklevel=2,
        )


def _said(exc: Exception) -> str:
    """An error in a line, with what to try, or else what would have been right."""
    if isinstance(exc, ImportError) and (exc.name or "").partition(".")[0] in (
        "numpy",
        "ml_dtypes",
    ):
        return f"{exc.name} is not installed; pip install 'holdfast[compute]'"
    what = getattr(exc, "what", None) or f"{type(exc).__name__}: {exc}"
    for lead, part in (("try", "hint"), ("expected", "expected")):
        if getattr(exc, part, None):
            return f"{what}; {lead} {getattr(exc, part)}"
    return str(what)


def _another_accelerator() -> bool:
    """Whether torch has an accelerator of its own here.

    CUDA is not initialized for this, which would be felt by every process forked later.
    """
    import torch

    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        return False
    built = torch.accelerator.current_accelerator()
    if built is None:
        return False
    if built.type == "cuda":
        return torch.cuda.device_count() > 0
    return torch.accelerator.is_available()
