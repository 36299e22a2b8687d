// The op TfInterop>Kept and its shape function.
#include "cc_kernels/tf/register_op.h"
#include "cc_kernels/tf/stated_shapes.h"
#include "tensorflow/core/framework/op_def_builder.h"

namespace tf_interop {
namespace {

// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
[[maybe_unused]] const bool is_registered = RegisterWithoutState([] {
  return tensorflow::OpDefBuilder("TfInterop>Kept")
      .Input("variables: N * resource")
      .Input("packed: P * variant")
      .Input("constants: Tin")
      .Output("values: Tout")
      .Attr("N: int >= 0")
      .Attr("P: int >= 0")
      .Attr("Tin: list(type) >= 0")
      .Attr("Tout: list(type) >= 1")
      .Attr("handles: list(int) >= 0")
      .Attr("reads: list(string) >= 0")
      .Attr("steps: list(string) >= 0")
      .Attr("results: list(string) >= 1")
      .Attr("kept_types: list(type) = []")
      .Attr("output_shapes: list(shape) = []")
      .SetShapeFn(InferStatedShapes)
      .Doc(R"doc(
Values that depend only on variables and constants: computed once, and again after a variable changed.

An operand is `inputs:<i>`, the value of a variable or, after those, a constant; or
`steps:<j>:<port>`, an output of an earlier step.

variables: The variables. No op of the graph writes them.
packed: None, or more variables in one tensor that TfInterop>PackVariables made.
constants: Tensors that are the same in every call.
values: The results, or one tensor with all of them, which a TfInterop>Unit can read.
handles: The place of each read's variable among `variables`, continued in `packed`.
reads: The ReadVariableOp that reads each variable, as a serialized NodeDef.
steps: Serialized NodeDefs of pure operations, with operands as inputs.
results: The operand of each result.
kept_types: The types of the results if they are in one tensor, else empty.
output_shapes: The outputs' shapes as far as they are known, or empty.
)doc");
});

}  // namespace
}  // namespace tf_interop
