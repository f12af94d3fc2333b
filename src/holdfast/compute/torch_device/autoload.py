"""Registers the device when torch is imported (entry point `torch.backends`).

`import torch` never fails because of Holdfast: errors become a RuntimeWarning. `torch.accelerator`
knows of no device until the program names it. Where torch has another accelerator nothing is
registered, because torch would take the device for it; `import holdfast.torch` registers it there
too. `TORCH_DEVICE_BACKEND_AUTOLOAD=0` turns this off.

This file imports nothing but the standard library: torch is still being imported when it runs.
"""

from __future__ import annotations

import warnings


def autoload() -> None:
    """Register the device, unless torch has another accelerator."""
    try:
        if not _has_other_accelerator():
            from holdfast.compute.torch_device.registration import register

            register(asked=False)
    except Exception as exc:  # noqa: BLE001 - `import torch` must not fail
        warnings.warn(
            f"torch.device('holdfast') is not there: {_describe(exc)} "
            "(TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops the attempt, and `import holdfast.torch` "
            "shows the error)",
            RuntimeWarning,
            stacklevel=2,
        )


def _describe(exc: Exception) -> str:
    """An error in one line, with its hint, else with what was expected."""
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


def _has_other_accelerator() -> bool:
    """Whether torch has an accelerator of its own here.

    CUDA is not initialized for this: processes forked later could not use it.
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
