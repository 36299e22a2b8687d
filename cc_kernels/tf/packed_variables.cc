// The kernels of TfInterop>PackVariables and TfInterop>UnpackVariables.
#include <memory>
#include <utility>
#include <vector>

#include "cc_kernels/tf/packed_values.h"
#include "cc_kernels/tf/program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

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
    const auto handles = Unpack<Tensor>(context->input(0));
    const int count = handles == nullptr ? 0 : static_cast<int>(handles->size());
    OP_REQUIRES(context, count == context->num_outputs(),
                InvalidArgument("Expected ", context->num_outputs(), " packed variables, got ",
                                count, "."));
    for (int i = 0; i < count; ++i) context->set_output(i, (*handles)[i]);
  }
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>PackVariables").Device(tensorflow::DEVICE_CPU),
                        PackVariables);
REGISTER_KERNEL_BUILDER(Name("TfInterop>UnpackVariables").Device(tensorflow::DEVICE_CPU),
                        UnpackVariables);

}  // namespace
}  // namespace tf_interop
