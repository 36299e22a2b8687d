#include "tests/cc/fake_cudnn_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cc/fake_cudnn_compute.h"

namespace tf_interop {
namespace {

// The attributes of a convolution operation.
struct ConvolutionNames {
  cudnnBackendDescriptorType_t type;
  ConvolutionKind kind;
  int applied, image, filter, output;
};

constexpr ConvolutionNames kConvolutions[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, ConvolutionKind::kForward,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, ConvolutionKind::kBackwardInput,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     ConvolutionKind::kBackwardFilter, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};

double Activate(const Recorded& pointwise, double x) {
  const auto given = [&](int name, double otherwise) {
    return pointwise.One<double>(name, otherwise);
  };
  if (pointwise.One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) == CUDNN_POINTWISE_ELU_FWD) {
    return x < 0 ? given(CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1) * std::expm1(x) : x;
  }
  if (x < 0) return given(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0) * x;
  return std::min(
      x, given(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, std::numeric_limits<double>::infinity()));
}

class GraphRun {
 public:
  explicit GraphRun(const std::map<int64_t, void*>& bound) : bound_(bound) {}

  void Convolve(const Recorded& operation, const ConvolutionNames& names) {
    const Recorded& applied = *operation.Part(names.applied);
    const auto spatial = [&](int name, int64_t depth) {
      return WithDepth(applied.All<int64_t>(name), depth);
    };
    const Spacing spacing = {spatial(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1),
                             spatial(CUDNN_ATTR_CONVOLUTION_DILATIONS, 1),
                             spatial(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0)};
    const Recorded &image = *operation.Part(names.image), &filter = *operation.Part(names.filter),
                   &output = *operation.Part(names.output);
    ComputeConvolution(&Find(image), &Find(filter), &Find(output), spacing, names.kind);
    Finish(names.kind == ConvolutionKind::kForward         ? output
           : names.kind == ConvolutionKind::kBackwardInput ? image
                                                           : filter);
  }

  void ApplyPointwise(const Recorded& operation) {
    const Recorded& pointwise = *operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const Recorded* const second = operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const Recorded& to = *operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    TensorValues& x = Find(*operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    TensorValues& y = Find(to);
    ForEachPlace(y.form.extents, [&](const Five& place) {
      if (second == nullptr) {
        y[place] = Activate(pointwise, x[place]);
        return;
      }
      TensorValues& bias = Find(*second);
      Five broadcast = place;
      for (size_t i = 0; i < place.size(); ++i) {
        if (bias.form.extents[i] == 1) broadcast[i] = 0;
      }
      y[place] = x[place] + bias[broadcast];
    });
    Finish(to);
  }

 private:
  // The tensor, read from its memory, if it has any, when it is first asked for.
  TensorValues& Find(const Recorded& tensor) {
    const auto id = tensor.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    const auto [entry, is_new] = tensors_.try_emplace(id);
    TensorValues& found = entry->second;
    if (!is_new) return found;
    found.form = {DataTypeOf(tensor.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
                  ToFive(tensor.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), 1),
                  ToFive(tensor.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES), 0)};
    const auto memory = bound_.find(id);
    if (memory == bound_.end()) {
      found.values.resize(found.form.Span(), std::nan(""));
    } else {
      found = ReadTensor(found.form, memory->second);
    }
    return found;
  }

  // Rounds what was computed, in its memory where it has any.
  void Finish(const Recorded& tensor) {
    const auto id = tensor.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    TensorValues& finished = tensors_.at(id);
    const auto memory = bound_.find(id);
    if (memory != bound_.end()) {
      WriteTensor(finished, memory->second);
    } else if (finished.form.dtype == DataType::kFloat) {
      for (double& value : finished.values) value = static_cast<float>(value);
    }
  }

  const std::map<int64_t, void*>& bound_;
  std::map<int64_t, TensorValues> tensors_;
};

}  // namespace

void RunGraph(const Recorded& graph, const std::map<int64_t, void*>& bound) {
  GraphRun run(bound);
  for (const RecordedPtr& operation : graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const auto* const names =
        std::find_if(std::begin(kConvolutions), std::end(kConvolutions),
                     [&](const auto& each) { return each.type == operation->type; });
    if (names != std::end(kConvolutions)) {
      run.Convolve(*operation, *names);
    } else {
      run.ApplyPointwise(*operation);
    }
  }
}

}  // namespace tf_interop
