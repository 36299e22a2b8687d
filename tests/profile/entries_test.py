"""The names of algorithms in plans and profiles."""

from __future__ import annotations

import re

import pytest

from tf_interop.convolution import ConvolutionKind
from tf_interop.profile.entries import (
    HOST_ALGORITHMS,
    LEGACY_ALGORITHMS,
    check_algorithm,
    names_engine,
)

ENGINES = (
    "eng0", "eng45_k24=15", "eng4_k2=0_k13=-1_k6=120", "split+nchw+eng0", "nchw+eng4_k2=1",
    "eng9223372036854775807_k2147483647=-9223372036854775807",
)  # fmt: skip
REFUSED = (
    "eng", "eng04", "eng4_", "eng4_k2", "eng4_k2=", "eng4_k2=1_k2=0", "eng4_k2=1.5", "eng4_k2=+1",
    "ENG4", "ConvFwd_eng4", "eng٤", "nchw+split+eng4", "pad+eng4", "eng4_sms=1", "winograd",
    "PRECOMP_GEMM", "CUDNN_CONVOLUTION_FWD_ALGO_GEMM", "ALGO_2", "nchw+", "nchw+BUFFERED",
    "WINOGRAD_k2=1", "eng4_k2=-0", "eng4_k2147483648=1", "eng4_k2=9223372036854775808",
    "eng9223372036854775808",
)  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_takes_engine_tags(name: str) -> None:
    check_algorithm(name)
    assert names_engine(name)


@pytest.mark.parametrize("kind", ConvolutionKind)
def test_takes_names_of_each_kind(kind: ConvolutionKind) -> None:
    assert {"FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"} <= set(LEGACY_ALGORITHMS[kind])
    formulations = ("", "split+", "nchw+", "split+nchw+")
    legacy = [words + name for name in LEGACY_ALGORITHMS[kind] for words in formulations]
    for name in (*legacy, *HOST_ALGORITHMS):
        check_algorithm(name)
        check_algorithm(name, kind)
        assert not names_engine(name)


@pytest.mark.parametrize("name", ["", "eng4 ", "eng4\n", *REFUSED])
def test_refuses_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {name!r}")):
        check_algorithm(name)


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
def test_refuses_a_name_of_another_kind(name: str, kind: ConvolutionKind) -> None:
    check_algorithm(name)
    with pytest.raises(ValueError, match=kind.value):
        check_algorithm(name, kind)
