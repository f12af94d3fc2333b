"""The examples of specification 003 as they stand there, with the import line changed.

They run in a process of their own that cannot import torch, except the one that asks for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import holdfast
from holdfast.compute import (
    ENGINES,
    AutogradTensor,
    CustomAdam,
    CustomConv2d,
    CustomDevice,
    CustomLinear,
    CustomMSELoss,
    CustomTensor,
    nn,
    optim,
    quant,
)

BASIC = """
from holdfast.compute import CustomDevice, CustomTensor, CustomLinear

# 1. 創建設備
device = CustomDevice("custom_gpu")
print(f"Using device: {device}")

# 2. 創建張量
x = CustomTensor([1, 2, 3, 4], device=device)
y = CustomTensor([5, 6, 7, 8], device=device)

# 3. 基本運算
z = x + y  # 加法
w = x * y  # 乘法
print(f"Addition result: {z}")
print(f"Multiplication result: {w}")

# 4. 矩陣運算
a = CustomTensor(np.random.randn(3, 4), device=device)
b = CustomTensor(np.random.randn(4, 2), device=device)
c = a @ b  # 矩陣乘法
print(f"Matrix multiplication: {a.shape} @ {b.shape} = {c.shape}")

# 5. 使用神經網絡層
model = CustomLinear(10, 5)
input_data = CustomTensor(np.random.randn(2, 10), device=device)
output = model(input_data)
print(f"Neural network: {input_data.shape} -> {output.shape}")
"""

TRAINING = """
import torch
from holdfast.compute import CustomDevice, CustomTensor, CustomLinear, CustomMSELoss

# 創建數據
device = CustomDevice("custom_gpu")
X = CustomTensor(torch.randn(100, 10).numpy(), device=device)
y = CustomTensor(torch.randn(100, 1).numpy(), device=device)

# 創建模型和損失函數
model = CustomLinear(10, 1)
criterion = CustomMSELoss()

# 簡單訓練循環 (概念演示)
learning_rate = 0.01
for epoch in range(10):
    # 前向傳播
    predictions = model(X)
    loss = criterion(predictions, y)

    print(f"Epoch {epoch+1}, Loss: {loss.item():.4f}")

    # 注意: 這裡省略了梯度計算和參數更新
    # 實際使用需要實現自動微分
"""

# The lines that the document leaves out.
SET_UP = "from holdfast.compute import CustomAdam, optim\noptimizer = OPTIMIZER\n"
STEP = "\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"

WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
"""


def program(text: str) -> str:
    """What a program prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the examples


def test_the_basic_example_runs_as_it_stands_and_without_torch() -> None:
    assert program(WITHOUT_TORCH + BASIC) == (
        "Using device: custom_gpu:0\n"
        "Addition result: tensor([ 6.,  8., 10., 12.], device='custom_gpu:0')\n"
        "Multiplication result: tensor([ 5., 12., 21., 32.], device='custom_gpu:0')\n"
        "Matrix multiplication: (3, 4) @ (4, 2) = (3, 2)\n"
        "Neural network: (2, 10) -> (2, 5)\n"
    )


@pytest.mark.slow
def test_the_training_example_runs_as_it_stands() -> None:
    lines = program(TRAINING).splitlines()
    assert [line.partition(", ")[0] for line in lines] == [f"Epoch {n}" for n in range(1, 11)]
    losses = {float(re.fullmatch(r"Epoch \d+, Loss: (\d+\.\d{4})", line)[1]) for line in lines}
    assert len(losses) == 1  # it only looks


def _losses_of_torch(optimizer: Any, start: dict[str, Any], X: Any, y: Any) -> list[float]:
    model = torch.nn.Linear(10, 1)
    model.load_state_dict({name: torch.from_numpy(t.copy()) for name, t in start.items()})
    made = optimizer(model.parameters())
    losses = []
    for _ in range(10):
        loss = torch.nn.functional.mse_loss(model(X), y)
        losses.append(loss.item())
        made.zero_grad()
        loss.backward()
        made.step()
    return losses


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            "optim.SGD(model.parameters(), lr=learning_rate)",
            lambda p: torch.optim.SGD(p, lr=0.01),
        ),
        (
            "CustomAdam(model.parameters(), lr=learning_rate)",
            lambda p: torch.optim.Adam(p, lr=0.01),
        ),
    ],
    ids=["SGD", "CustomAdam"],
)
def test_with_three_more_lines_the_training_example_follows_torch(
    ours: str, theirs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    head, loop = TRAINING.split("for epoch in range(10):")
    text = head + SET_UP.replace("OPTIMIZER", ours) + "start = {name: t.data.copy() for name, t in "
    text += "model.state_dict().items()}\nfound = []\nfor epoch in range(10):" + loop.rstrip()
    text += "\n    found.append(loss.item())" + STEP
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(text, "<the training example>", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 10
    rows, wanted = torch.from_numpy(names["X"].data), torch.from_numpy(names["y"].data)
    expected = _losses_of_torch(theirs, names["start"], rows, wanted)
    assert names["found"] == pytest.approx(expected, abs=1e-5)
    assert names["found"] == sorted(names["found"], reverse=True)
    assert names["found"][-1] < names["found"][0]


def test_training_needs_no_torch() -> None:
    text = TRAINING.replace("import torch\n", "").replace("torch.randn(100, 10).numpy()",
                                                          "np.random.randn(100, 10)")  # fmt: skip
    text = text.replace("torch.randn(100, 1).numpy()", "np.random.randn(100, 1)")
    head, loop = text.split("for epoch in range(10):")
    setting = SET_UP.replace("OPTIMIZER", "CustomAdam(model.parameters(), lr=learning_rate)")
    lines = program(
        f"{WITHOUT_TORCH}{head}{setting}for epoch in range(10):{loop.rstrip()}{STEP}"
    ).splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in lines]
    assert len(losses) == 10
    assert losses[-1] < losses[0]


# ---- the names and attributes of the document


def test_a_device_has_a_type_and_an_index() -> None:
    assert (CustomDevice().device_type, CustomDevice().index) == ("custom", 0)
    assert CustomDevice("custom_gpu").device_type == "custom_gpu"
    assert CustomDevice("custom_gpu", 2).index == 2
    assert CustomDevice("custom_gpu") == CustomDevice("custom_gpu:0") == "custom_gpu"


def test_a_tensor_has_data_device_dtype_and_shape() -> None:
    x = CustomTensor([[1, 2, 3]])
    assert isinstance(x.data, numpy.ndarray)
    assert (x.dtype, x.shape, x.device) == (numpy.float32, (1, 3), CustomDevice())
    assert CustomTensor([1], dtype=numpy.int16).dtype == numpy.int16
    assert CustomTensor([1], device=CustomDevice("custom_gpu")).device.device_type == "custom_gpu"
    x.data = [[4, 5, 6]]
    assert x.tolist() == [[4, 5, 6]]


def test_an_autograd_tensor_has_what_the_document_gives_it() -> None:
    x = AutogradTensor([1, 2])
    assert isinstance(x, CustomTensor)
    assert (x.requires_grad, x.grad, x.grad_fn) == (False, None, None)
    x = AutogradTensor([1, 2], requires_grad=True)
    y = (x * x).sum()
    assert y.grad_fn is not None
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]


def test_custom_adam_keeps_two_moments() -> None:
    model = CustomLinear(3, 2)
    step = CustomAdam(model.parameters())
    assert (step.lr, len(step.parameters)) == (0.001, 2)
    assert (step.m, step.v) == ({}, {})
    (model(CustomTensor(numpy.ones((1, 3)))) ** 2).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    step.step()
    numpy.testing.assert_allclose(step.m[0].data, 0.1 * gradient.data, rtol=1e-5)
    numpy.testing.assert_allclose(step.v[0].data, 0.001 * gradient.data**2, rtol=1e-4)
    step.lr = 0.5
    assert step.param_groups[0]["lr"] == 0.5


def test_the_layers_of_the_document_are_there() -> None:
    image = CustomTensor(numpy.ones((1, 3, 8, 8)))
    assert CustomConv2d(3, 4, 3, padding=1)(image).shape == (1, 4, 8, 8)
    assert CustomMSELoss()(image, image * 0).item() == 1
    for name in ("BatchNorm2d", "Dropout", "LSTM", "GRU", "MultiheadAttention"):
        assert issubclass(getattr(nn, name), nn.Module)
    assert {"SGD", "Adam", "AdamW", "RMSprop"} <= set(dir(optim))
    assert quant.__name__ == "holdfast.compute.quant"
    assert "numpy" in ENGINES


def test_python_operators_of_the_specification() -> None:
    x, y = CustomTensor([6, 8]), CustomTensor([3, 4])
    results = [x + y, x - y, x * y, x / y, x @ y, x // y, x % y, x**2, -x, abs(-x)]
    expected = [[9, 12], [3, 4], [18, 32], [2, 2], 50, [2, 2], [0, 0], [36, 64], [-6, -8], [6, 8]]
    assert [result.tolist() for result in results] == expected


# ---- specification 004 has tensors, too


def test_the_tensors_of_the_package_are_these() -> None:
    a = holdfast.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert isinstance(a, CustomTensor)
    buffer = holdfast.empty((2, 2), device="cpu")
    assert holdfast.matmul(a, a, out=buffer) is buffer
    assert buffer.tolist() == [[7, 10], [15, 22]]
    assert a.add_(1).mul_(2) is a
    assert a.tolist() == [[4, 6], [8, 10]]
    assert holdfast.matmul(a, [[1], [1]]).tolist() == [[10], [18]]
    learned = holdfast.tensor([1.0], requires_grad=True)
    (learned * 3).backward()
    assert learned.grad is not None
    assert learned.grad.tolist() == [3]


def test_the_whole_of_compute_imports_without_torch() -> None:
    text = WITHOUT_TORCH + (
        "import holdfast.compute as c\n"
        "for name in dir(c):\n"
        "    getattr(c, name)\n"
        "a = __import__('holdfast').tensor([[1.0, 2.0], [3.0, 4.0]])\n"
        "model = c.nn.Sequential(c.nn.Conv2d(1, 2, 3), c.nn.ReLU(), c.nn.Flatten())\n"
        "print(model(c.randn(1, 1, 5, 5)).shape, (a @ a).tolist(), 'torch' in sys.modules)\n"
    )
    assert program(text) == "(1, 18) [[7.0, 10.0], [15.0, 22.0]] False\n"


def test_nothing_of_compute_but_what_is_named_for_it_imports_torch() -> None:
    home = Path(holdfast.__file__).parent / "compute"
    found = [
        path.relative_to(home).as_posix()
        for path in sorted(home.rglob("*.py"))
        if re.search(r"^\s*(import torch|from torch)\b", path.read_text(encoding="utf-8"), re.M)
    ]
    assert [path for path in found if not path.startswith("torch_device/")] == ["engines/torch.py"]
