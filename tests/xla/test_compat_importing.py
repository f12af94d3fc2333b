"""Importing torchax: what fails without its mends, and works with them.

A test named "... still ..." fails once torchax no longer needs the mend: then both can go.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

from holdfast.xla.arrays import to_jax  # noqa: E402
from holdfast.xla.compat import device_name  # noqa: E402
from holdfast.xla.compat.environment import Environment, Tensor  # noqa: E402
from tests.xla.compat_cases import X, plain  # noqa: E402

# torchax makes whole numbers 64 bits wide in some places, and JAX warns that it has none.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")


def process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    env = os.environ | variables
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env
    )


@pytest.mark.slow
def test_torchax_alone_still_does_not_import() -> None:
    found = process("import torchax")
    assert found.returncode != 0
    assert "has no overload name 'dim_Dimname'" in found.stderr


@pytest.mark.parametrize(
    ("loads", "name"), [pytest.param("0", "jax", marks=pytest.mark.slow), ("1", "holdfast")]
)
@pytest.mark.slow
def test_it_imports_with_and_without_a_name_for_the_device(loads: str, name: str) -> None:
    found = process(
        f"""
        import torch
        before = (torch.utils.rename_privateuse1_backend, torch._register_device_module,
                  torch._ops.OpOverloadPacket.__getattr__)
        from holdfast.xla.compat import device_name, torchax
        assert torchax() is torchax()
        assert device_name() == "{name}", device_name()
        assert before == (torch.utils.rename_privateuse1_backend, torch._register_device_module,
                          torch._ops.OpOverloadPacket.__getattr__)
        try:
            torch.ops.aten.prod.dim_Dimname
        except AttributeError:
            pass
        else:
            raise AssertionError("an overload that is not there")
        from holdfast.xla.compat.environment import Environment, Tensor
        from holdfast.xla.compat.tensors import ORIGINALS
        import jax.numpy as jnp
        env = Environment()
        one = Tensor(jnp.ones(3), env)
        with env:
            both = one + torch.ones(3, device=one.device)
        assert both.jax().tolist() == [2.0] * 3
        assert one.device.type == "{name}"
        try:  # the fault: torch does not know the name that torchax gives
            print(ORIGINALS["Tensor.device"].fget(one))
        except RuntimeError:
            print("no such device")
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=loads,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == ("no such device\n" if name == "holdfast" else "jax:0\n")


@pytest.mark.slow
def test_a_missing_torchax_is_an_error_that_says_what_to_install() -> None:
    found = process(
        """
        import sys
        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "torchax":
                    raise ModuleNotFoundError("No module named 'torchax'", name="torchax")
        sys.meta_path.insert(0, Blocked())
        from holdfast.base.errors import MissingDependency
        from holdfast.xla.compat import torchax
        for _ in range(2):
            try:
                torchax()
            except MissingDependency as exc:
                print(exc)
        print(any(name.startswith("torchax") for name in sys.modules))
        """
    )
    assert found.returncode == 0, found.stderr
    text = (
        "XLA needs jax and torchax: No module named 'torchax'\n"
        "  expected: jax and a torchax that imports with this torch\n"
        "  try: pip install 'holdfast[xla]'\n"
    )
    assert found.stdout == text * 2 + "False\n"


def test_no_table_keeps_an_overload_that_torch_has_dropped() -> None:
    keys = [*plain()._ops, *plain()._decomps]
    assert not [key for key in keys if type(key).__name__ == "Dropped"]


def test_the_device_has_the_name_that_torch_knows() -> None:
    assert torch.device(device_name()).type == device_name()
    env = Environment()
    assert Tensor(to_jax(X), env).device.type == device_name()
