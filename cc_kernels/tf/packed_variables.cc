// TfInterop>PackVariables and TfInterop>UnpackVariables.
#include "cc_kernels/tf/packed_variables.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc_kernels/tf/register_op.h"
#include "tensorflow/core/framework/op_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"

namespace tf_interop {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

class PackVariables : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto handles = std::make_shared<std::vector<Tensor>>();
    for (int i = 0; i < context->num_inputs(); ++i) handles->push_back(context->input(i));
    Tensor* packed = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape(), &packed));
    packed->scalar<tensorflow::Variant>()() = PackedVariables{std::move(handles)};
  }
};

class UnpackVariables : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const PackedVariables* const packed = PackedVariablesIn(context->input(0));
    const int count = packed == nullptr ? 0 : static_cast<int>(packed->handles->size());
    OP_REQUIRES(context, count == context->num_outputs(),
                absl::InvalidArgumentError(absl::StrCat("Expected ", context->num_outputs(),
                                                        " packed variables, got ", count, ".")));
    for (int i = 0; i < count; ++i) context->set_output(i, (*packed->handles)[i]);
  }
};

absl::Status SetHandleShapes(tensorflow::shape_inference::InferenceContext* context) {
  std::vector<tensorflow::DataType> types;
  std::vector<tensorflow::PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr("dtypes", &types));
  TF_RETURN_IF_ERROR(context->GetAttr("shapes", &shapes));
  const size_t count = context->num_outputs();
  if (types.size() != count || shapes.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("Expected ", count, " dtypes and shapes, got ",
                                                   types.size(), " and ", shapes.size(), "."));
  }
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->Scalar());
    tensorflow::shape_inference::ShapeHandle shape;
    TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    context->set_output_handle_shapes_and_types(
        i, std::vector<tensorflow::shape_inference::ShapeAndType>{{shape, types[i]}});
  }
  return absl::OkStatus();
}

// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
[[maybe_unused]] const bool are_registered =
    RegisterWithoutState([] {
      return tensorflow::OpDefBuilder("TfInterop>PackVariables")
          .Input("handles: N * resource")
          .Output("packed: variant")
          .Attr("N: int >= 1")
          .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
            context->set_output(0, context->Scalar());
            return absl::OkStatus();
          })
          .Doc(R"doc(
Packs the handles of variables into one tensor, which a function takes in place of all of them.

handles: Scalars.
packed: A scalar. The variables live as long as it does.
)doc");
    }) &&
    RegisterWithoutState([] {
      return tensorflow::OpDefBuilder("TfInterop>UnpackVariables")
          .Input("packed: variant")
          .Output("handles: N * resource")
          .Attr("N: int >= 1")
          .Attr("dtypes: list(type) >= 1")
          .Attr("shapes: list(shape) >= 1")
          .SetShapeFn(SetHandleShapes)
          .Doc(R"doc(
The handles in a tensor that TfInterop>PackVariables made.

packed: A scalar with N handles.
handles: Scalars.
dtypes: The types of the variables.
shapes: Their shapes as far as they are known.
)doc");
    });

REGISTER_KERNEL_BUILDER(Name("TfInterop>PackVariables").Device(tensorflow::DEVICE_CPU),
                        PackVariables);
REGISTER_KERNEL_BUILDER(Name("TfInterop>UnpackVariables").Device(tensorflow::DEVICE_CPU),
                        UnpackVariables);

}  // namespace
}  // namespace tf_interop
