// TensorFlow's LRN in less time.
//
// TensorFlow multiplies the squares of all channels with a matrix that has a band of ones, and
// calls a power for each value. Here a window of squares is added up, and the usual powers are
// square roots. The results differ in the last bits, because the sums have another order.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/program.h"
#include "cc_kernels/tf/program_rewrites.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr char kOp[] = "TfInterop>ResponseNormalization";

REGISTER_OP("TfInterop>ResponseNormalization")
    .Input("input: float")
    .Output("output: float")
    .Attr("depth_radius: int = 5")
    .Attr("bias: float = 1.0")
    .Attr("alpha: float = 1.0")
    .Attr("beta: float = 0.5")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
As TensorFlow's LRN, for a few values of beta. Only a TfInterop>Unit has this op, as a step.
)doc");

class ResponseNormalization : public tensorflow::OpKernel {
 public:
  explicit ResponseNormalization(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("depth_radius", &radius_));
    OP_REQUIRES_OK(context, context->GetAttr("bias", &bias_));
    OP_REQUIRES_OK(context, context->GetAttr("alpha", &alpha_));
    OP_REQUIRES_OK(context, context->GetAttr("beta", &beta_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    OP_REQUIRES(context, input.dims() == 4,
                InvalidArgument("Expected an image with four dimensions, got the shape ",
                                input.shape().DebugString(), "."));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0}, 0, input.shape(), &output));
    if (input.NumElements() == 0) return;
    const int64_t channels = input.dim_size(3);
    const float* const from = input.flat<float>().data();
    float* const to = output->flat<float>().data();
    const int64_t radius = std::min<int64_t>(radius_, channels);
    DivideWork(*context->device(), input.NumElements() / channels, channels * (radius + 6),
               [&](int64_t first, int64_t last) {
                 std::vector<float> squares(channels + 2 * radius);  // zeros at both ends
                 std::vector<float> sums(channels);
                 for (int64_t pixel = first; pixel < last; ++pixel) {
                   Normalize(from + pixel * channels, channels, radius, squares.data(), sums.data(),
                             to + pixel * channels);
                 }
               });
  }

 private:
  // The channels of one pixel. `to` may be `from`.
  void Normalize(const float* from, int64_t channels, int64_t radius, float* squares, float* sums,
                 float* to) const {
    for (int64_t i = 0; i < channels; ++i) squares[radius + i] = from[i] * from[i];
    std::copy_n(squares, channels, sums);
    for (int64_t offset = 1; offset <= 2 * radius; ++offset) {
#pragma GCC ivdep
      for (int64_t i = 0; i < channels; ++i) sums[i] += squares[i + offset];
    }
    const auto divide = [from, channels, sums, to, bias = bias_, alpha = alpha_](auto power) {
#pragma GCC ivdep
      for (int64_t i = 0; i < channels; ++i) to[i] = from[i] / power(bias + alpha * sums[i]);
    };
    if (beta_ == 1) divide([](float sum) { return sum; });
    if (beta_ == 0.5F) divide([](float sum) { return std::sqrt(sum); });
    // Not the root of sum * sqrt(sum), which overflows.
    if (beta_ == 0.75F)
      divide([](float sum) { return std::sqrt(sum) * std::sqrt(std::sqrt(sum)); });
  }

  int64_t radius_ = 0;
  float bias_ = 0;
  float alpha_ = 0;
  float beta_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>ResponseNormalization").Device(tensorflow::DEVICE_CPU),
                        ResponseNormalization);

}  // namespace

void ReplaceResponseNormalizations(std::vector<tensorflow::NodeDef>* steps) {
  for (tensorflow::NodeDef& step : *steps) {
    if (step.op() != "LRN") continue;
    tensorflow::DataType dtype = tensorflow::DT_FLOAT;
    float beta = 0.5F;  // the op's default
    tensorflow::TryGetNodeAttr(step, "T", &dtype);
    tensorflow::TryGetNodeAttr(step, "beta", &beta);
    const bool has_roots = beta == 0.5F || beta == 0.75F || beta == 1;
    if (dtype != tensorflow::DT_FLOAT || !has_roots) continue;
    step.set_op(kOp);
    step.mutable_attr()->erase("T");
  }
}

}  // namespace tf_interop
