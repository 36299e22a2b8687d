"""Whether a profile's device is another than the one to run on."""

from __future__ import annotations

from tf_interop.profile.types import ProfiledDevice

_COMPARED = ("backend", "name", "compute_capability", "sm_count", "cudnn")


def why_foreign(profiled: ProfiledDevice, here: ProfiledDevice) -> str | None:
    """How a profile's device differs from another in what its values depend on.

    Memory, driver, CUDA and clocks are there to be read; they are not compared.

    Args:
        profiled: what was measured on.
        here: what is to be run on; its `sm_count` is not compared where it is 0.

    Returns:
        Every differing field with both values, or None where the profile fits.
    """
    differences = [
        f"{field}: expected {_shown(getattr(here, field))}, got {_shown(getattr(profiled, field))}"
        for field in _COMPARED
        if getattr(here, field) != getattr(profiled, field)
        and not (field == "sm_count" and here.sm_count == 0)
    ]
    return "; ".join(differences) or None


def _shown(value: object) -> str:
    return "none that is known" if value == "" else repr(value)
