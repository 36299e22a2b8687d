"""Profile files: versioned JSON, one file for one device and one set of software versions.

What many entries share is in the file once: an entry names its configuration, its source and its
kernels' names by their place in `configurations`, `sources` and `kernel_names`. Each entry is a
line of its own, so that a new measurement is one line of a diff.

{
"format":"tf_interop.profile",
"version":2,
"device":{"backend":"cudnn","name":"NVIDIA H200",…},
"configurations":[
{"op":"Conv2D","kind":"forward",…}
],
"sources":[
"tf_interop core, backend cudnn: …"
],
"kernel_names":[
"sm90_xmma_fprop_implicit_gemm_…"
],
"algorithms":[
{"configuration":0,"algorithm":"eng4_k2=1","tf32":true,"latency_us":12.5,…}
],
…
}
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.errors import ProfileError
from tf_interop.profile.check import check_configuration, check_profile
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    KernelMeasurement,
    MeasuredConvolution,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.types import (
    PROFILE_FORMAT,
    PROFILE_VERSION,
    Profile,
    ProfiledDevice,
)
from tf_interop.versioned_file import (
    PathLike,
    VersionedFormat,
    load_versioned,
    save_versioned,
    versioned_schema,
)


def load_profile(path: PathLike) -> Profile:
    """Reads a profile file.

    Legal is a file whose convolutions have known shapes and algorithms that a runner knows for
    their kind, whose figures are finite and in their bounds, which numbers the lanes of a stage in
    the order in which they appear, and which says nothing twice.

    Raises:
        ProfileError: there is no such file, it is not whole, of another format or version, or not
            legal. Says where in the file, what was expected and what to do.
    """
    return _unpack(load_versioned(path, _PROFILE_FILE))


def save_profile(profile: Profile, path: PathLike) -> None:
    """Writes a profile file, atomically; equal profiles give equal bytes.

    Raises:
        ProfileError: the profile is not legal (see `load_profile`), or the file cannot be written.
    """
    try:
        check_profile(profile)
    except ValueError as error:
        # What is wrong with a value that JSON cannot hold, such as infinity, shows only here.
        raise ProfileError(f"{error}, in the profile for '{path}'. {_REMEDY}") from error
    save_versioned(_pack(profile), path, _PROFILE_FILE)


def profile_document(profile: Profile) -> Any:
    """What a profile's file holds, for msgspec to encode; see `profile_schema`."""
    return _pack(profile)


def profile_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of profile files: types, fields and bounds."""
    return versioned_schema(_PROFILE_FILE)


def _as_filed(entry_type: type, **other_types: object) -> type:
    """The dataclass as files hold it, with fields of other types, such as places in a list."""
    hints = typing.get_type_hints(entry_type, include_extras=True)
    return dataclasses.make_dataclass(
        entry_type.__name__,
        [
            (field.name, other_types.get(field.name, hints[field.name]), _default_of(field))
            for field in dataclasses.fields(entry_type)
        ],
        frozen=True,
        slots=True,
        namespace={"__doc__": entry_type.__doc__},
    )


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is dataclasses.MISSING:
        return dataclasses.field()
    return dataclasses.field(default=field.default)


def _tuple_of(item_type: type) -> Any:
    return types.GenericAlias(tuple, (item_type, ...))


def _place_in(field: str) -> Any:
    return Annotated[int, msgspec.Meta(ge=0, description=f"Place in `{field}`, from 0.")]


_CONFIGURATION = _place_in("configurations")
_SOURCE = _place_in("sources")
_FiledKernel = _as_filed(KernelMeasurement, name=_place_in("kernel_names"))
_FiledConvolution = _as_filed(MeasuredConvolution, configuration=_CONFIGURATION)
_FILED_KERNELS = _tuple_of(_FiledKernel)
_FILED_CONVOLUTIONS: Any = Annotated[_tuple_of(_FiledConvolution), msgspec.Meta(min_length=1)]
_FILED_ENTRIES: Mapping[type, type] = {
    AlgorithmMeasurement: _as_filed(
        AlgorithmMeasurement, configuration=_CONFIGURATION, kernels=_FILED_KERNELS, source=_SOURCE
    ),
    AlgorithmFailure: _as_filed(AlgorithmFailure, configuration=_CONFIGURATION, source=_SOURCE),
    StageMeasurement: _as_filed(StageMeasurement, convolutions=_FILED_CONVOLUTIONS, source=_SOURCE),
    StageFailure: _as_filed(StageFailure, convolutions=_FILED_CONVOLUTIONS, source=_SOURCE),
}
_ENTRY_TYPES: Mapping[str, type] = {
    "algorithms": AlgorithmMeasurement,
    "algorithm_failures": AlgorithmFailure,
    "stages": StageMeasurement,
    "stage_failures": StageFailure,
}
_FiledProfile: Any = dataclasses.make_dataclass(
    "Profile",
    [
        ("format", str),
        ("version", int),
        ("device", ProfiledDevice),
        ("configurations", tuple[ConvolutionConfiguration, ...]),
        ("sources", tuple[str, ...]),
        ("kernel_names", tuple[str, ...]),
        *(
            (field, _tuple_of(_FILED_ENTRIES[entry_type]))
            for field, entry_type in _ENTRY_TYPES.items()
        ),
    ],
    frozen=True,
    slots=True,
    namespace={"__doc__": Profile.__doc__},
)


class _Places:
    """The distinct values of a list, in the order in which they came."""

    def __init__(self) -> None:
        self.values: dict[Hashable, int] = {}

    def place_of(self, value: Hashable) -> int:
        return self.values.setdefault(value, len(self.values))


def _pack(profile: Profile) -> Any:
    configurations, sources, kernel_names = _Places(), _Places(), _Places()
    references: dict[str, Callable[[Any], Any]] = {
        "configuration": configurations.place_of,
        "source": sources.place_of,
        "kernels": lambda kernels: _convert_all(
            kernels, _FiledKernel, {"name": kernel_names.place_of}
        ),
        "convolutions": lambda convolutions: _convert_all(
            convolutions, _FiledConvolution, {"configuration": configurations.place_of}
        ),
    }
    entries = {
        field: _convert_all(getattr(profile, field), _FILED_ENTRIES[entry_type], references)
        for field, entry_type in _ENTRY_TYPES.items()
    }
    return _FiledProfile(
        format=profile.format,
        version=profile.version,
        device=profile.device,
        configurations=tuple(configurations.values),
        sources=tuple(sources.values),
        kernel_names=tuple(kernel_names.values),
        **entries,
    )


def _unpack(filed: Any) -> Profile:
    references = {
        "configuration": filed.configurations.__getitem__,
        "source": filed.sources.__getitem__,
        "kernels": lambda kernels: _convert_all(
            kernels, KernelMeasurement, {"name": filed.kernel_names.__getitem__}
        ),
        "convolutions": lambda convolutions: _convert_all(
            convolutions, MeasuredConvolution, {"configuration": filed.configurations.__getitem__}
        ),
    }
    entries: dict[str, Any] = {
        field: _convert_all(getattr(filed, field), entry_type, references)
        for field, entry_type in _ENTRY_TYPES.items()
    }
    return Profile(device=filed.device, **entries)


def _convert_all(
    values: Iterable[Any], target_type: type, references: Mapping[str, Callable[[Any], Any]]
) -> tuple[Any, ...]:
    """The same dataclasses as another type; a field in `references` goes through its function."""
    names = [field.name for field in dataclasses.fields(target_type)]
    return tuple(
        target_type(
            *(
                references[name](getattr(value, name))
                if name in references
                else getattr(value, name)
                for name in names
            )
        )
        for value in values
    )


def _check_filed(filed: Any) -> None:
    for index, configuration in enumerate(filed.configurations):
        check_configuration(configuration, f"$.configurations[{index}]")
    for field in _ENTRY_TYPES:
        for index, entry in enumerate(getattr(filed, field)):
            _check_places(filed, entry, f"$.{field}[{index}]")
    check_profile(_unpack(filed))


def _check_places(filed: Any, entry: Any, place: str) -> None:
    _check_place(entry.source, filed.sources, "sources", f"{place}.source")
    if hasattr(entry, "convolutions"):
        for index, measured in enumerate(entry.convolutions):
            _check_place(
                measured.configuration,
                filed.configurations,
                "configurations",
                f"{place}.convolutions[{index}].configuration",
            )
        return
    _check_place(
        entry.configuration, filed.configurations, "configurations", f"{place}.configuration"
    )
    for index, kernel in enumerate(getattr(entry, "kernels", ())):
        _check_place(
            kernel.name, filed.kernel_names, "kernel_names", f"{place}.kernels[{index}].name"
        )


def _check_place(number: int, values: Sequence[object], field: str, place: str) -> None:
    if number >= len(values):
        raise ValueError(
            f"Expected a place in `$.{field}`, which holds {len(values)}, got {number} at `{place}`"
        )


_REMEDY = "Correct the file, or measure anew."
_PROFILE_FILE: VersionedFormat[Any] = VersionedFormat(
    noun="profile",
    name=PROFILE_FORMAT,
    version=PROFILE_VERSION,
    value_type=_FiledProfile,
    check=_check_filed,
    error=ProfileError,
    remedy=_REMEDY,
    has_line_per_item=True,
)
