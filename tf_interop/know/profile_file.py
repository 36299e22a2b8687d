"""Profile files: versioned JSON, one file for one device and one set of software versions."""

from __future__ import annotations

from typing import Any

from tf_interop.errors import ProfileError
from tf_interop.know.algorithm import check_algorithm
from tf_interop.know.convolution import ConvolutionConfiguration
from tf_interop.know.profile import (
    PROFILE_FORMAT,
    PROFILE_VERSION,
    MeasuredConvolution,
    Profile,
)
from tf_interop.know.versioned_file import (
    PathLike,
    VersionedFormat,
    load_versioned,
    save_versioned,
    versioned_schema,
)


def load_profile(path: PathLike) -> Profile:
    """Reads a profile file.

    Legal is a file whose stages have at least one convolution each, all shapes known, positive
    times, and algorithms that a runner knows for the kind of convolution.

    Raises:
        ProfileError: there is no such file, it is not whole, of another format or version, or not
            legal. Says where in the file, what was expected and what to do.
    """
    return load_versioned(path, _PROFILE_FILE)


def save_profile(profile: Profile, path: PathLike) -> None:
    """Writes a profile file, atomically; equal profiles give equal bytes.

    Raises:
        ProfileError: the profile is not legal (see `load_profile`), or the file cannot be written.
    """
    save_versioned(profile, path, _PROFILE_FILE)


def profile_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of profile files: types, fields and bounds."""
    return versioned_schema(_PROFILE_FILE)


def _check_profile(profile: Profile) -> None:
    for stage_number, stage in enumerate(profile.stages):
        for index, measured in enumerate(stage.convolutions):
            _check_measured(measured, f"$.stages[{stage_number}].convolutions[{index}]")


def _check_measured(measured: MeasuredConvolution, place: str) -> None:
    if measured.algorithm is not None:
        try:
            check_algorithm(measured.algorithm, measured.configuration.kind)
        except ValueError as error:
            raise ValueError(f"{error} at `{place}.algorithm`") from error
    _check_shapes_known(measured.configuration, f"{place}.configuration")


def _check_shapes_known(configuration: ConvolutionConfiguration, place: str) -> None:
    for field in ("image_shape", "filter_shape", "output_shape"):
        shape = getattr(configuration, field)
        if shape is None or None in shape:
            raise ValueError(
                f"Expected the shape that was measured, all dimensions known, got {shape} at "
                f"`{place}.{field}`"
            )


_PROFILE_FILE = VersionedFormat(
    noun="profile",
    name=PROFILE_FORMAT,
    version=PROFILE_VERSION,
    value_type=Profile,
    check=_check_profile,
    error=ProfileError,
    remedy="Correct the file, or measure anew.",
)
