"""Files of configurations: versioned JSON, what a machine without TensorFlow is to measure."""

from __future__ import annotations

from tf_interop.convolution import ConvolutionConfiguration, has_known_shapes
from tf_interop.errors import ProfileError
from tf_interop.profile.check import check_configuration, check_stage
from tf_interop.profile.worklist import (
    LIST_FORMAT,
    LIST_VERSION,
    ConfigurationList,
)
from tf_interop.versioned_file import (
    PathLike,
    VersionedFormat,
    load_versioned,
    save_versioned,
)


def load_configurations(path: PathLike) -> ConfigurationList:
    """Reads a list of configurations.

    Legal is a file that holds each configuration once, with all shapes known, and stages of these.

    Raises:
        ProfileError: there is no such file, it is not whole, of another format or version, or not
            legal. Says where in the file, what was expected and what to do.
    """
    return load_versioned(path, _LIST_FILE)


def save_configurations(configurations: ConfigurationList, path: PathLike) -> None:
    """Writes a list of configurations, atomically; equal lists give equal bytes.

    Raises:
        ProfileError: the list is not legal (see `load_configurations`), or the file cannot be
            written.
    """
    save_versioned(configurations, path, _LIST_FILE)


def _check_list(configurations: ConfigurationList) -> None:
    places: dict[ConvolutionConfiguration, int] = {}
    for index, listed in enumerate(configurations.convolutions):
        place = f"$.convolutions[{index}].configuration"
        if not has_known_shapes(listed.configuration):
            raise ValueError(f"Expected known shapes and groups, got unknown ones at `{place}`")
        check_configuration(listed.configuration, place)
        first = places.setdefault(listed.configuration, index)
        if first != index:
            raise ValueError(
                f"Expected each configuration once, got that of `$.convolutions[{first}]` again at "
                f"`{place}`"
            )
    known = [each.configuration for each in configurations.convolutions]
    for index, each in enumerate(configurations.stages):
        place = f"$.stages[{index}].stage"
        wrong = [number for number in each.stage.operations if number >= len(known)]
        if wrong:
            raise ValueError(
                f"Expected the place of one of {len(known)} convolutions, got {wrong[0]} at "
                f"`{place}`"
            )
        check_stage(each.stage.map(known.__getitem__), place)


_LIST_FILE = VersionedFormat(
    noun="list of configurations",
    name=LIST_FORMAT,
    version=LIST_VERSION,
    value_type=ConfigurationList,
    check=_check_list,
    error=ProfileError,
    remedy="Correct the file, or make it anew with tf-interop profile --export-configurations.",
)
