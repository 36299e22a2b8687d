"""Runs independent work of a TensorFlow graph side by side, on CPUs and GPUs.

Importing the package does little. The plugin is registered once both the package and TensorFlow
are imported; `enable` turns it on.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

import wrapt

from tf_interop.errors import INSTALL_TENSORFLOW, TfInteropError

if TYPE_CHECKING:
    from tf_interop import keras as keras
    from tf_interop.model.analyze import Analysis as Analysis
    from tf_interop.model.analyze import analyze as analyze
    from tf_interop.model.collect import CollectOptions as CollectOptions
    from tf_interop.model.collect import collect_configurations as collect_configurations
    from tf_interop.model.make_plan import plan as plan
    from tf_interop.model.parallelize import parallelize as parallelize
    from tf_interop.parallel.cluster import join_cluster as join_cluster
    from tf_interop.parallel.costs.devices import DeviceGraph as DeviceGraph
    from tf_interop.parallel.costs.devices import load_device_graph as load_device_graph
    from tf_interop.parallel.costs.devices import save_device_graph as save_device_graph
    from tf_interop.parallel.costs.devices import uniform_device_graph as uniform_device_graph
    from tf_interop.parallel.types import ParallelPlan as ParallelPlan
    from tf_interop.parallel.types import load_parallel_plan as load_parallel_plan
    from tf_interop.parallel.types import save_parallel_plan as save_parallel_plan
    from tf_interop.planning.types import Plan as Plan
    from tf_interop.planning.types import load_plan as load_plan
    from tf_interop.planning.types import save_plan as save_plan
    from tf_interop.profile.file import load_profile as load_profile
    from tf_interop.profile.file import save_profile as save_profile
    from tf_interop.profile.types import Profile as Profile
    from tf_interop.profile.worklist import ConfigurationList as ConfigurationList
    from tf_interop.profile.worklist import load_configurations as load_configurations
    from tf_interop.profile.worklist import save_configurations as save_configurations
    from tf_interop.runtime.settings import PassReport as PassReport
    from tf_interop.runtime.status import Status as Status
    from tf_interop.runtime.status import status as status
    from tf_interop.runtime.switch import disable as disable
    from tf_interop.runtime.switch import enable as enable
    from tf_interop.tuning.tune import Tuning as Tuning
    from tf_interop.tuning.tune import tune as tune

__version__ = "0.1.0"

_NAMES = {
    "model.analyze": ("Analysis", "analyze"),
    "model.collect": ("CollectOptions", "collect_configurations"),
    "model.make_plan": ("plan",),
    "model.parallelize": ("parallelize",),
    "parallel.cluster": ("join_cluster",),
    "parallel.costs.devices": (
        *("DeviceGraph", "load_device_graph", "save_device_graph", "uniform_device_graph"),
    ),
    "parallel.types": ("ParallelPlan", "load_parallel_plan", "save_parallel_plan"),
    "planning.types": ("Plan", "load_plan", "save_plan"),
    "profile.file": ("load_profile", "save_profile"),
    "profile.types": ("Profile",),
    "profile.worklist": ("ConfigurationList", "load_configurations", "save_configurations"),
    "runtime.settings": ("PassReport",),
    "runtime.status": ("Status", "status"),
    "runtime.switch": ("disable", "enable"),
    "tuning.tune": ("Tuning", "tune"),
}
_MODULE_OF = {name: f"tf_interop.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULE_OF, "keras"]


def __getattr__(name: str) -> Any:
    """Imports a name on first use: most names need TensorFlow, whose import takes seconds."""
    if name == "keras":
        return importlib.import_module("tf_interop.keras")
    if name in _MODULE_OF:
        try:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            raise ImportError(
                f"tf_interop.{name} needs TensorFlow, which is not installed. Install it: "
                f"{INSTALL_TENSORFLOW}"
            ) from error
    raise AttributeError(f"module 'tf_interop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _register_plugin(_tensorflow: object) -> None:
    """Registers the plugin, so that TensorFlow's own option turns it on and off."""
    # `import tensorflow` must not fail if the library does not load; status() and enable() report
    # that. An ImportError means that a module of this package is importing TensorFlow right now;
    # get_plugin is called again when the plugin is needed.
    with contextlib.suppress(TfInteropError, ImportError):
        from tf_interop.runtime.plugin import get_plugin

        get_plugin()


wrapt.register_post_import_hook(_register_plugin, "tensorflow")
