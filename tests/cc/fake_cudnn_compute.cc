#include "tests/cc/fake_cudnn_compute.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cc_kernels/core/host/reference_convolution.h"

namespace tf_interop {

int64_t TensorForm::At(const Five& place) const {
  int64_t at = 0;
  for (size_t i = 0; i < place.size(); ++i) at += place[i] * strides[i];
  return at;
}

int64_t TensorForm::Span() const {
  Five last = extents;
  for (int64_t& place : last) --place;
  return At(last) + 1;
}

DataType DataTypeOf(cudnnDataType_t type) {
  static const auto* const types =
      new std::map<cudnnDataType_t, DataType>{{CUDNN_DATA_FLOAT, DataType::kFloat},
                                              {CUDNN_DATA_HALF, DataType::kHalf},
                                              {CUDNN_DATA_BFLOAT16, DataType::kBFloat16},
                                              {CUDNN_DATA_DOUBLE, DataType::kDouble}};
  return types->at(type);
}

TensorValues ReadTensor(const TensorForm& form, const void* data) {
  return {form, const_cast<void*>(data),
          data == nullptr ? std::vector<double>(form.Span(), std::nan(""))
                          : Decode(form.dtype, data, form.Span())};
}

void WriteTensor(TensorValues* tensor) {
  if (tensor->data != nullptr) {
    Encode(tensor->form.dtype, tensor->values.data(), tensor->form.Span(), tensor->data);
  } else if (tensor->form.dtype == DataType::kFloat) {
    for (double& value : tensor->values) value = static_cast<float>(value);
  }
}

void ComputeConvolution(TensorValues* image, TensorValues* filter, TensorValues* output,
                        const Spacing& spacing, ConvolutionKind kind) {
  const Five& filters = filter->form.extents;
  const int64_t group_channels = filters[1];
  const int64_t group_filters = filters[0] / (image->form.extents[1] / group_channels);
  TensorValues& result = kind == ConvolutionKind::kForward         ? *output
                         : kind == ConvolutionKind::kBackwardInput ? *image
                                                                   : *filter;
  std::fill(result.values.begin(), result.values.end(), 0.0);
  // One filter: [1, channels, depth, R, S].
  Five taps = filters;
  taps[0] = 1;
  ForEachPlace(output->form.extents, [&](const Five& y) {
    ForEachPlace(taps, [&](Five w) {
      Five x = {y[0], y[1] / group_filters * group_channels + w[1]};
      for (int i = 0; i < 3; ++i) {
        x[2 + i] = y[2 + i] * spacing.strides[i] + w[2 + i] * spacing.dilations[i] -
                   spacing.pads_before[i];
        if (x[2 + i] < 0 || x[2 + i] >= image->form.extents[2 + i]) return;
      }
      w[0] = y[1];
      switch (kind) {
        case ConvolutionKind::kForward:
          (*output)[y] += (*image)[x] * (*filter)[w];
          break;
        case ConvolutionKind::kBackwardInput:
          (*image)[x] += (*output)[y] * (*filter)[w];
          break;
        case ConvolutionKind::kBackwardFilter:
          (*filter)[w] += (*image)[x] * (*output)[y];
          break;
      }
    });
  });
  WriteTensor(&result);
}

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
    ComputeConvolution(&Find(operation, names.image), &Find(operation, names.filter),
                       &Find(operation, names.output), spacing, names.kind);
  }

  void ApplyPointwise(const Recorded& operation) {
    const Recorded& pointwise = *operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const bool is_activation = operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) == nullptr;
    TensorValues& x = Find(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    TensorValues& y = Find(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    ForEachPlace(y.form.extents, [&](const Five& place) {
      if (is_activation) {
        y[place] = Activate(pointwise, x[place]);
        return;
      }
      TensorValues& bias = Find(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
      Five broadcast = place;
      for (size_t i = 0; i < place.size(); ++i) {
        if (bias.form.extents[i] == 1) broadcast[i] = 0;
      }
      y[place] = x[place] + bias[broadcast];
    });
    WriteTensor(&y);
  }

 private:
  // The tensor of an operation's attribute. The first call reads it.
  TensorValues& Find(const Recorded& operation, int name) {
    const Recorded& tensor = *operation.Part(name);
    const auto id = tensor.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    const auto [entry, is_new] = tensors_.try_emplace(id);
    if (is_new) {
      const auto memory = bound_.find(id);
      entry->second =
          ReadTensor({DataTypeOf(tensor.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
                      ToFive(tensor.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), 1),
                      ToFive(tensor.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES), 0)},
                     memory == bound_.end() ? nullptr : memory->second);
    }
    return entry->second;
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
