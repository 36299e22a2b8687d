"""Which names of algorithms a plan or a profile may hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_interop.algorithm import (
    HOST_ALGORITHMS,
    LEGACY_ALGORITHMS,
    check_algorithm,
    names_engine,
)
from tf_interop.convolution import ConvolutionKind

KNOBS = st.dictionaries(st.integers(0, 99), st.integers(-(2**31), 2**31), max_size=6)


@pytest.mark.parametrize(
    "name",
    [
        "eng0",
        "eng45_k24=15",
        "eng4_k2=0_k13=-1_k6=120",
        "pad+eng1_k2=5",
        "split+nchw+eng0",
        "eng4_sms=1",
        "pad+split+nchw+eng4_k2=1_sms=66",
        "eng9223372036854775807_k2147483647=-9223372036854775807_sms=2147483647",
    ],
)
def test_takes_engine_tag(name: str) -> None:
    check_algorithm(name)


@given(st.integers(0, 10_000), KNOBS)
def test_takes_every_engine_tag(engine: int, knobs: dict[int, int]) -> None:
    check_algorithm(f"eng{engine}" + "".join(f"_k{knob}={knobs[knob]}" for knob in knobs))


@pytest.mark.parametrize("kind", ConvolutionKind)
def test_takes_the_names_of_each_kind(kind: ConvolutionKind) -> None:
    assert {"FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"} <= set(LEGACY_ALGORITHMS[kind])
    for name in (*LEGACY_ALGORITHMS[kind], *HOST_ALGORITHMS):
        check_algorithm(name)
        check_algorithm(name, kind)
    for name in LEGACY_ALGORITHMS[kind]:
        for words in ("pad+", "split+", "nchw+", "pad+split+nchw+"):
            check_algorithm(words + name)
            check_algorithm(words + name, kind)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "eng",
        "eng04",
        "eng4_",
        "eng4_k2",
        "eng4_k2=",
        "eng4_k2=1_k2=0",
        "eng4_k2=1.5",
        "eng4_k2=+1",
        "eng4 ",
        "eng4\n",
        "ENG4",
        "ConvFwd_eng4",
        "nchw+pad+eng4",
        "eng٤",
        "winograd",
        "PRECOMP_GEMM",
        "CUDNN_CONVOLUTION_FWD_ALGO_GEMM",
        "ALGO_2",
        "nchw+",
        "nchw+IM2COL_GEMM",
        "nchw+pad+FFT",
        "FFT_sms=4",
        "WINOGRAD_k2=1",
        "eng4_sms=0",
        "eng4_sms=",
        "eng4_sms=-1",
        "eng4_sms=01",
        "eng4_sms=2147483648",
        "eng4_sms=1_k2=3",
        "eng4_sms=1_sms=1",
        "eng4_k2=-0",
        "eng4_k2147483648=1",
        "eng4_k2=9223372036854775808",
        "eng9223372036854775808",
    ],
)
def test_refuses_with_what_is_accepted(name: str) -> None:
    with pytest.raises(ValueError) as raised:
        check_algorithm(name)
    message = str(raised.value)
    assert f"got {name!r}" in message
    for accepted in (
        "eng4_k24=15_k6=0",
        "_sms=66",
        "'pad+', 'split+' and 'nchw+'",
        "IMPLICIT_PRECOMP_GEMM",
        "ALGO_3",
        "IM2COL_GEMM",
    ):
        assert accepted in message


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("GEMM", ConvolutionKind.BACKWARD_INPUT),
        ("ALGO_3", ConvolutionKind.BACKWARD_INPUT),
        ("IMPLICIT_GEMM", ConvolutionKind.BACKWARD_FILTER),
        ("ALGO_0", ConvolutionKind.FORWARD),
        ("nchw+ALGO_0", ConvolutionKind.FORWARD),
    ],
)
def test_refuses_name_of_another_kind(name: str, kind: ConvolutionKind) -> None:
    check_algorithm(name)
    with pytest.raises(ValueError, match=rf"legacy name \({kind.value}: .*got '{re.escape(name)}'"):
        check_algorithm(name, kind)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eng0", True),
        ("pad+split+nchw+eng4_k2=1_sms=66", True),
        ("FFT", False),
        ("nchw+FFT", False),
        ("IM2COL_GEMM", False),
    ],
)
def test_tells_engines_from_other_names(name: str, expected: bool) -> None:
    assert names_engine(name) == expected
