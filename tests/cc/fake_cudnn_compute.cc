#include "tests/cc/fake_cudnn_compute.h"

#include <algorithm>

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
  switch (type) {
    case CUDNN_DATA_HALF:
      return DataType::kHalf;
    case CUDNN_DATA_BFLOAT16:
      return DataType::kBFloat16;
    case CUDNN_DATA_DOUBLE:
      return DataType::kDouble;
    default:
      return DataType::kFloat;
  }
}

TensorValues ReadTensor(const TensorForm& form, const void* data) {
  return {form, Decode(form.dtype, data, form.Span())};
}

void WriteTensor(const TensorValues& tensor, void* data) {
  Encode(tensor.form.dtype, tensor.values.data(), tensor.form.Span(), data);
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
  // Of one filter: [1, channels, depth, R, S].
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
}

}  // namespace tf_interop
