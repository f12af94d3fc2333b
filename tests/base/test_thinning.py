from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.series import thin

Sample = tuple[int, int]
samples_ = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=80)


def first(sample: Sample) -> int:
    return sample[0]


def second(sample: Sample) -> int:
    return sample[1]


@given(samples_)
def test_no_peak_is_lost_and_the_order_stays(samples: list[Sample]) -> None:
    numbered = [(*sample, at) for at, sample in enumerate(samples)]
    fewer = thin(numbered, first, second)
    assert fewer == sorted(fewer, key=lambda sample: sample[2])
    assert set(fewer) <= set(numbered)
    for figure in (first, second):
        assert max(map(figure, fewer), default=0) == max(map(figure, numbered), default=0)


def test_the_older_half_gets_half_as_many_and_the_newer_stays() -> None:
    samples = [(at, 80 - at) for at in range(80)]
    fewer = thin(samples, first, second)
    assert len(fewer) <= 60
    assert fewer[0] == samples[0]
    assert fewer[-39:] == samples[-39:]
