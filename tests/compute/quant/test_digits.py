"""Quantized networks on handwritten digits: accuracy, memory, and what training for it brings."""

from __future__ import annotations

import gc
import json

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute import manual_seed, nn, no_grad, optim, quant
from holdfast.compute.tensors.creation import from_numpy

TRAIN, TEST = slice(0, 1300), slice(1300, None)
LOW = quant.Scheme(bits=3)  # one scale for a whole weight: here rounding afterwards does cost
LOW_INPUTS = quant.Scheme(bits=4, symmetric=False)


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits  # takes a second to import

    pictures, labels = load_digits(return_X_y=True)
    order = numpy.random.default_rng(0).permutation(len(labels))
    scaled = (pictures / 16).astype(numpy.float32).reshape(-1, 1, 8, 8)
    return scaled[order], labels[order]


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    )


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


def train(model, digits, epochs, lr, seed=0):
    pictures, labels = digits[0][TRAIN], digits[1][TRAIN]
    model.train()
    adam, loss_of = optim.Adam(model.parameters(), lr=lr), nn.CrossEntropyLoss()
    draw = numpy.random.default_rng(seed)
    for _ in range(epochs):
        order = draw.permutation(len(labels))
        for start in range(0, len(labels), 64):
            batch = order[start : start + 64]
            loss = loss_of(model(from_numpy(pictures[batch])), from_numpy(labels[batch]))
            adam.zero_grad()
            loss.backward()
            adam.step()
    return model.eval()


def scores(model, digits):
    """(accuracy, loss) on digits that were not trained with."""
    pictures, labels = from_numpy(digits[0][TEST]), from_numpy(digits[1][TEST])
    with no_grad():
        out = model(pictures)
        loss = nn.CrossEntropyLoss()(out, labels).item()
    return float((out.data.argmax(1) == labels.data).mean()), loss


def calibrated(model, digits, observer="histogram"):
    prepared = quant.prepare(model, observer)
    with no_grad():
        prepared(from_numpy(digits[0][:300]))
    return prepared


@pytest.fixture(scope="module", params=[mlp, cnn], ids=["mlp", "cnn"])
def trained(request, digits):
    manual_seed(0)
    return train(request.param(), digits, 12, 3e-3)


@pytest.mark.slow
def test_int8_is_within_one_percent_of_float(trained, digits):
    accuracy, _ = scores(trained, digits)
    assert accuracy > 0.94
    made = {
        "weights": quant.quantize_weights(trained),
        "weights per tensor": quant.quantize_weights(trained, quant.INT8),
        "dynamic": quant.quantize_dynamic(trained),
        "static": quant.convert(calibrated(trained, digits)),
        "static, smallest and largest": quant.convert(calibrated(trained, digits, "minmax")),
    }
    learned = train(quant.prepare_qat(trained), digits, 1, 1e-4)
    made["trained for it"] = quant.convert(learned)
    found = {name: scores(model, digits)[0] for name, model in made.items()}
    assert {name: round(a, 4) for name, a in found.items() if a < accuracy - 0.01} == {}
    assert scores(quant.quantize_weights(trained, quant.Scheme(bits=4, axis=0)), digits)[0] > 0.9


@pytest.mark.slow
def test_training_for_few_bits_beats_rounding_afterwards(digits):
    """Three bits for weights, four for inputs, in both: at eight bits there is nothing to gain."""
    afterwards, learned = [], []
    for seed in range(3):
        manual_seed(seed)
        model = train(cnn(), digits, 8, 3e-3, seed)
        prepared = calibrated(model, digits)
        afterwards.append(scores(quant.convert(prepared, LOW, LOW_INPUTS), digits))
        better = train(quant.prepare_qat(model, LOW, LOW_INPUTS), digits, 4, 1e-3, seed)
        learned.append(scores(quant.convert(better), digits))
    mean_after, mean_learned = numpy.mean(afterwards, axis=0), numpy.mean(learned, axis=0)
    assert mean_learned[0] > mean_after[0]
    assert mean_learned[1] < mean_after[1]


@pytest.mark.slow
def test_a_trained_for_model_converts_to_what_it_was_trained_as(digits):
    manual_seed(0)
    learned = train(quant.prepare_qat(mlp().eval()), digits, 1, 1e-3)
    converted = quant.convert(learned)
    pictures = from_numpy(digits[0][TEST])
    with no_grad():
        difference = numpy.abs(learned(pictures).data - converted(pictures).data).max()
    assert difference < 1e-4


def test_weights_take_a_quarter_and_no_float_copy_stays():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    before = sum(p.nbytes for n, p in model.named_parameters() if n.endswith("weight"))
    made = quant.quantize_dynamic(model)
    made(from_numpy(numpy.ones((2, 512), "float32")))
    kept = [b for n, b in made.named_buffers() if n.endswith("weight")]
    assert sum(b.nbytes for b in kept) * 4 == before
    assert quant.nbytes(made) < quant.nbytes(model) / 3.9
    del model
    gc.collect()
    large = [o for o in gc.get_objects() if type(o) is nn.Parameter and o.shape == (512, 512)]
    assert large == []
    four = quant.quantize_weights(nn.Sequential(nn.Linear(512, 512)), quant.INT4)
    assert four[0].weight.nbytes * 8 == 512 * 512 * 4


@pytest.mark.slow
def test_memory_of_the_pool_falls_to_a_quarter():
    from holdfast import memory

    pool = memory.memory_manager.pool("cpu")
    gc.collect()
    start = pool.total_allocated
    model = nn.Sequential(nn.Linear(2048, 2048, bias=False))
    floats = pool.total_allocated - start
    made = quant.quantize_dynamic(model)
    del model
    gc.collect()
    whole = pool.total_allocated - start
    assert floats >= 4 * 2048 * 2048
    assert 3.9 < floats / whole < 4.1
    del made


def test_the_report_puts_the_worst_layer_first(digits):
    manual_seed(0)
    model = cnn().eval()
    prepared = calibrated(model, digits)
    made = quant.convert(prepared)
    report = quant.compare(model, made, from_numpy(digits[0][:50]))
    assert [row.layer for row in report.rows] == sorted(
        (row.layer for row in report.rows), key=[r.layer for r in report.rows].index
    )
    assert [r.signal_db for r in report.rows] == sorted(r.signal_db for r in report.rows)
    assert {r.layer for r in report.rows} == {"0", "4", "9"}
    assert all(r.signal_db > 25 for r in report.rows)
    text = str(report)
    assert "int8 per axis 0, static" in text
    assert "18.4 KB -> 4.7 KB" in text
    assert json.loads(json.dumps(report.as_dict()))["rows"][0]["layer"] == report.rows[0].layer


def test_a_quantized_model_saves_and_loads(tmp_path, digits):
    manual_seed(1)
    model = cnn().eval()
    made = quant.convert(calibrated(model, digits))
    nn.save(made, tmp_path / "model.safetensors")
    manual_seed(2)
    other = quant.convert(calibrated(cnn().eval(), digits))
    other.load_state_dict(nn.load(tmp_path / "model.safetensors"))
    pictures = from_numpy(digits[0][:20])
    with no_grad():
        assert numpy.array_equal(made(pictures).data, other(pictures).data)


def test_the_model_that_is_given_stays_as_it_is(digits):
    model = cnn().eval()
    before = {name: value.data.copy() for name, value in model.state_dict().items()}
    text = repr(model)
    quant.convert(calibrated(model, digits))
    quant.prepare_qat(model)
    assert repr(model) == text
    for name, value in model.state_dict().items():
        assert numpy.array_equal(value.data, before[name])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: quant.quantize_dynamic(nn.Sequential(nn.ReLU())),
            "there is nothing to quantize in Sequential\n  expected: a Linear or a Conv2d inside",
        ),
        (
            lambda: quant.convert(nn.Sequential(nn.Linear(2, 2))),
            "there is nothing to quantize in Sequential\n"
            "  expected: a layer that was prepared inside\n"
            "  try: quant.prepare(model) first",
        ),
        (
            lambda: quant.quantize_dynamic([1]),
            "a list cannot be quantized\n  expected: an nn.Module",
        ),
        (
            lambda: quant.prepare(nn.Linear(2, 2), "median"),
            "there is no observer 'median'\n  expected: one of minmax, average, histogram",
        ),
        (
            lambda: quant.quantize_dynamic(nn.Linear(64, 2), quant.INT4),
            "int4 per group of 32 is for weights alone\n"
            "  expected: a scheme per tensor or per output channel (axis=0)\n"
            "  try: quantize_weights(model, scheme)",
        ),
        (
            lambda: quant.quantize_dynamic(nn.Linear(64, 2), quant.Scheme(axis=1)),
            "int8 per axis 1 cannot be used for a weight in an integer product\n"
            "  expected: a symmetric scheme, per tensor or per output channel (axis=0)",
        ),
        (
            lambda: quant.quantize_dynamic(nn.Linear(4, 2))(from_numpy(numpy.ones((3, 5), "f"))),
            "QuantizedLinear([2, 4], int8 per axis 0, dynamic) cannot take float32[3, 5]: its last "
            "size is not 4\n  expected: [..., 4]",
        ),
    ],
)
def test_what_cannot_be_quantized_is_said(make, message):
    with pytest.raises(BadInput) as caught:
        make()
    assert str(caught.value) == message


def test_a_model_that_saw_no_data_cannot_be_converted():
    with pytest.raises(RuntimeError, match="layer '0' has seen no data"):
        quant.convert(quant.prepare(nn.Sequential(nn.Linear(2, 2))))
