"""Fuses normalizations in training, then folds and keeps parameters, before stages are made.

Nothing is measured or planned here: what is folded is work that is gone.
"""

from __future__ import annotations

import collections
import dataclasses

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import Refusal
from tf_interop.errors import GraphError
from tf_interop.graph.channel_changes import ChannelChanges
from tf_interop.graph.check_fusions import check_folds, check_normalizations
from tf_interop.graph.find_normalizations import find_training_normalizations
from tf_interop.graph.fold import Fold, find_folds, only_units_run
from tf_interop.graph.fuse_normalizations import rewrite_normalizations
from tf_interop.graph.keep import rewrite_folds
from tf_interop.graph.ops import CONVOLUTION_KINDS, UNIT_FILTER_POSITIONS
from tf_interop.graph.padding import find_paddings
from tf_interop.graph.parameters import find_parameters
from tf_interop.graph.program import KEPT_OP
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rescale import find_rescalings
from tf_interop.graph.rewrite import AS_STOCK, rewrite_units
from tf_interop.graph.strides import move_strides
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import ANCHOR_OPS, Unit, find_steps
from tf_interop.graph.view import GraphView, device_type_of
from tf_interop.runtime.settings import GraphItem
from tf_interop.terminal import count_of


def view_of(graph_def: graph_pb2.GraphDef, item: GraphItem) -> GraphView:
    """Indexes the handed graph, or what the pass has made of it so far."""
    return GraphView(graph_def, item.nodes_to_preserve, item.fetches)


@dataclasses.dataclass(frozen=True)
class FoldReport:
    """The result of the pass for one graph.

    Attributes:
        name: its first convolution.
        function: the name of the Python function that the graph is of; empty if unknown.
        node_count_after: nodes after the pass.
        fold_count: convolutions and matrix products that absorbed nodes.
        folded_count: nodes that convolutions and matrix products absorbed.
        rescaling_count: normalizations that became one operation each.
        kept_count: tensors that are kept between calls.
        kept_bytes: the size of those that are computed, and not a variable's own value.
        normalization_count: normalizations in training that were fused.
        refusals: variables and folds that were left out, with the reason.
        separate_normalizations: normalizations in training that stay, with the reason.
    """

    name: str
    device_type: str
    node_count: int
    node_count_after: int
    normalization_count: int
    separate_normalizations: tuple[Refusal, ...]
    fold_count: int = 0
    folded_count: int = 0
    rescaling_count: int = 0
    kept_count: int = 0
    kept_bytes: int = 0
    refusals: tuple[Refusal, ...] = ()
    function: str = ""

    def __str__(self) -> str:
        """The result in a sentence."""
        where = f"{self.function}, graph with {self.name}" if self.function else self.name
        parts = [f"{where}: {self.node_count} nodes became {self.node_count_after}"]
        if self.normalization_count:
            parts.append(f"{count_of(self.normalization_count, 'normalization')} fused")
        if self.kept_count:
            parts.append(
                f"{self.folded_count} nodes folded into {self.fold_count} convolutions and matrix "
                f"products; {self.kept_count} tensors kept, {self.kept_bytes / 2**20:.1f} MiB "
                "computed"
            )
        if self.rescaling_count:
            parts.append(
                f"{count_of(self.rescaling_count, 'normalization')} became one operation each"
            )
        for what, refusals in (
            ("normalizations not fused", self.separate_normalizations),
            ("not kept", self.refusals),
        ):
            reasons = collections.Counter(refusal.reason.value for refusal in refusals)
            if reasons:
                left = (f"{count} {reason}" for reason, count in reasons.items())
                parts.append(f"{what}: {', '.join(left)}")
        return "; ".join(parts)


def run_fold_pass(
    graph_def: graph_pb2.GraphDef, item: GraphItem, kept_mb: int, *, has_onednn: bool
) -> tuple[graph_pb2.GraphDef | None, FoldReport | None]:
    """Folds, keeps and fuses what it can, within a limit for kept values.

    See `ChannelChanges` for `has_onednn`.

    Returns:
        The new graph, or None if nothing changed; and a report, or None if the graph has nothing
        to fold or fuse.

    Raises:
        GraphError: the graph is not well-formed.
        TimeLimitError: it took longer than the `time_limit` around it.
    """
    device_type, infer = item.device_type, item.infer_output_shapes
    if any(
        node.op == KEPT_OP and device_type_of(node.device) == device_type for node in graph_def.node
    ):
        return None, None
    view = view_of(graph_def, item)
    if CONVOLUTION_KINDS.keys().isdisjoint(view.op_types):
        return None, None
    properties = GraphProperties(view, infer)
    normalizations, separate = find_training_normalizations(view, properties, device_type)
    changed: graph_pb2.GraphDef | None = None
    if normalizations:
        check_time_limit()
        changed = rewrite_normalizations(view, normalizations)
        fused = view_of(changed, item)
        check_normalizations(view, fused, normalizations)
        view, properties = fused, GraphProperties(fused, infer)
        check_time_limit()
    parameters = find_parameters(view, GraphProperties(view), device_type)
    changes = ChannelChanges(view, properties, parameters, device_type, has_onednn=has_onednn)
    folds, refusals = find_folds(changes)
    rescalings, not_rescaled = find_rescalings(changes)
    paddings = find_paddings(changes)
    check_time_limit()
    rewriting = rewrite_folds(changes, folds, rescalings, paddings, most_bytes=kept_mb << 20)
    if rewriting is not None:
        check_time_limit()
        changed = rewriting.graph_def
        folded = view_of(changed, item)
        check_folds(view, folded)
        if device_type == "CPU":
            check_time_limit()
            changed = move_strides(folded, GraphProperties(folded, infer)) or changed
    if changed is None and not separate:
        return None, None
    report = FoldReport(
        name=next(view.names[i] for i, op in enumerate(view.ops) if op in CONVOLUTION_KINDS),
        device_type=device_type,
        node_count=len(graph_def.node),
        node_count_after=len((changed or graph_def).node),
        normalization_count=len(normalizations),
        separate_normalizations=separate,
    )
    if rewriting is None:
        return changed, report
    made_folds = [each for each in rewriting.made if isinstance(each, Fold)]
    kept_nodes = [node for node in rewriting.graph_def.node if node.op == KEPT_OP]
    return changed, dataclasses.replace(
        report,
        fold_count=len(made_folds),
        folded_count=sum(len(fold.absorbed) for fold in made_folds),
        rescaling_count=len(rewriting.made) - len(made_folds),
        kept_count=sum(len(node.attr["Tout"].list.type) for node in kept_nodes),
        kept_bytes=rewriting.kept_bytes,
        refusals=(*parameters.refusals, *refusals, *not_rescaled, *rewriting.refusals),
    )


LEAST_ARRANGED_BYTES = 1 << 16
"""Smaller filters are arranged in less time than an op of ours takes to find the arranged one."""


def arrange_filters(graph_def: graph_pb2.GraphDef, item: GraphItem) -> graph_pb2.GraphDef | None:
    """Makes units of convolutions and products on a CPU that are in none, where that matters.

    A unit runs TensorFlow's own kernel on all cores, as stock TensorFlow does. It lets oneDNN keep
    a large filter in the form that it needs, and can run what nothing else can; see
    `only_units_run`.

    Returns:
        The new graph, or None if there is none to make.

    Raises:
        GraphError: a convolution that only a unit can run cannot be in one.
    """
    view = view_of(graph_def, item)
    properties = GraphProperties(view)

    def is_large(index: int) -> bool:
        source, port = view.fanins[index][UNIT_FILTER_POSITIONS[view.ops[index]]]
        if view.ops[source] != KEPT_OP:
            return False
        kept = view.nodes[source].attr
        size = tf.as_dtype(kept["Tout"].list.type[port]).size
        for dim in kept["output_shapes"].list.shape[port].dim:
            size *= dim.size
        return bool(size >= LEAST_ARRANGED_BYTES)

    needing = {
        index
        for index, node in enumerate(view.nodes)
        if only_units_run(node) and device_type_of(node.device) == "CPU"
    }
    found = [
        index
        for index, op in enumerate(view.ops)
        if index in needing
        or (op in ANCHOR_OPS and op in UNIT_FILTER_POSITIONS and is_large(index))
    ]
    if not found:
        return None
    regions, reasons = find_steps(view, found)
    if without_unit := needing & reasons.keys():
        index = min(without_unit)
        raise GraphError(
            f"Expected '{view.names[index]}', which only a unit can run, to fit into one, but "
            f"{reasons[index].value}."
        )
    units = [Unit((index,), index) for index in found if index in regions]
    if not units:
        return None
    return rewrite_units(view, units, cores=AS_STOCK, output_shapes=properties.output_shape)
