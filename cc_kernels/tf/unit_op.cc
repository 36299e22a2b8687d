// The op TfInterop>Unit.
#include "cc_kernels/tf/stated_shapes.h"
#include "tensorflow/core/framework/op.h"

namespace tf_interop {

REGISTER_OP("TfInterop>Unit")
    .Input("inputs: Tin")
    .Output("outputs: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 1")
    .Attr("steps: list(string) >= 1")
    .Attr("results: list(string) >= 1")
    .Attr("kept_inputs: list(int) = []")
    .Attr("kept_types: list(type) = []")
    .Attr("cores: int = 1")
    .Attr("split_inputs: list(int) = []")
    .Attr("timed_graph: string = ''")
    .Attr("timed_unit: int = 0")
    .Attr("timed_units: int = 0")
    .Attr("output_shapes: list(shape) = []")
    .SetShapeFn(InferStatedShapes)
    .Doc(R"doc(
Runs pure operations back to back with TensorFlow's own kernels. A few in float32 have faster ones: see
docs/how_it_works.md. The units of a graph may find out by
themselves on how many cores they run fastest, or with the batch divided.

An operand is `inputs:<i>`, an input of the op or a value in the last one (see kept_types), or `steps:<j>:<port>`, an output of an earlier step.

inputs: The tensors that the steps read, each once.
outputs: The tensors that other nodes read.
steps: Serialized NodeDefs in the order in which they run, with operands as inputs, and without
  devices, control inputs and attributes that start with an underscore.
results: The operand of each output.
kept_inputs: Positions in `inputs` of filters that seldom or never change. oneDNN's kernels transform
  each once, and again after it has changed.
kept_types: The types of all values of a TfInterop>Kept, if the last input has them. They take the
  place of that input and those after it. Empty: the last input is like others.
cores: The number of cores, if the unit does not time itself. One core is the calling thread. Several
  are a group of threads that stay awake while the unit runs, or the calling thread if too few are
  free. A group has no more threads than there are intra-op threads. With 0, steps run as in stock
  TensorFlow.
split_inputs: Positions in `inputs` of tensors whose first dimension is the batch. Steps that read
  them, directly or through others, must compute each image by itself. A unit that times itself may
  divide the batch into as many parts as there are intra-op threads; each part runs through the steps
  on one core, or on its share of the cores if there are fewer images. Empty: the batch is not divided.
timed_graph: A name for the graph. Not empty: `cores` does not apply. The units of this name time their
  steps, and run in the fastest way: on one core, on several, as in stock TensorFlow, or, if there is one
  unit with `split_inputs`, with the batch divided.
timed_unit: The number of this unit among those of the graph.
timed_units: Their count. Each runs once in a step.
output_shapes: The outputs' shapes as far as they are known, or empty.
)doc");

}  // namespace tf_interop
