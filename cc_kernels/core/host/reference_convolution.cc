#include "cc_kernels/core/host/reference_convolution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "Eigen/Core"

namespace tf_interop {
namespace {

// Calls visit(T*) with a null pointer of the type of `dtype`.
template <typename Visit>
void WithType(DataType dtype, const Visit& visit) {
  switch (dtype) {
    case DataType::kFloat:
      return visit(static_cast<float*>(nullptr));
    case DataType::kHalf:
      return visit(static_cast<Eigen::half*>(nullptr));
    case DataType::kBFloat16:
      return visit(static_cast<Eigen::bfloat16*>(nullptr));
    case DataType::kDouble:
      return visit(static_cast<double*>(nullptr));
  }
}

// Elements between neighbors of an image or an output.
struct Strides {
  int64_t batch;
  std::array<int64_t, 3> spatial;
  int64_t channel;
};

Strides StridesOf(Layout layout, int64_t depth, int64_t height, int64_t width, int64_t channels) {
  const int64_t pixels = depth * height * width;
  if (layout == Layout::kNHWC) {
    return {pixels * channels, {height * width * channels, width * channels, channels}, 1};
  }
  return {pixels * channels, {height * width, width, 1}, pixels};
}

Strides ImageStrides(const Convolution& c) {
  return StridesOf(c.layout, c.image_depth, c.image_height, c.image_width, c.image_channels);
}

Strides OutputStrides(const Convolution& c) {
  return StridesOf(c.layout, c.output_depth, c.output_height, c.output_width, c.output_channels);
}

// Calls visit(output position, tap, image position) along one spatial dimension. Skips taps that
// read padding, because they add zero.
template <typename Visit>
void ForEachPosition(const SpatialSizes& s, const Visit& visit) {
  for (int64_t position = 0; position < s.output; ++position) {
    for (int64_t tap = 0; tap < s.filter; ++tap) {
      const int64_t read = position * s.stride + tap * s.dilation - s.pad_before;
      if (read >= 0 && read < s.image) visit(position, tap, read);
    }
  }
}

// Calls visit(image, filter, output) with the offsets of the first product of every run: one image
// element with all filters of its group. In a run filters are neighbors, and outputs are a channel
// apart.
template <typename Visit>
void ForEachRun(const Convolution& c, const Visit& visit) {
  const Strides image = ImageStrides(c), output = OutputStrides(c);
  const std::array<SpatialSizes, 3> spatial = SpatialSizesOf(c);
  const int64_t channels = c.image_channels / c.group_count;
  const int64_t filters = c.output_channels / c.group_count;
  for (int64_t n = 0; n < c.batch; ++n) {
    ForEachPosition(spatial[0], [&](int64_t o, int64_t t, int64_t d) {
      const int64_t image_plane = n * image.batch + d * image.spatial[0];
      const int64_t output_plane = n * output.batch + o * output.spatial[0];
      ForEachPosition(spatial[1], [&](int64_t p, int64_t r, int64_t h) {
        ForEachPosition(spatial[2], [&](int64_t q, int64_t s, int64_t w) {
          const int64_t x = image_plane + h * image.spatial[1] + w * image.spatial[2];
          const int64_t y = output_plane + p * output.spatial[1] + q * output.spatial[2];
          const int64_t tap = (t * c.filter_height + r) * c.filter_width + s;
          for (int64_t i = 0; i < c.image_channels; ++i) {
            const int64_t k = i / channels * filters;
            visit(x + i * image.channel, (tap * channels + i % channels) * c.output_channels + k,
                  y + k * output.channel);
          }
        });
      });
    });
  }
}

// The offsets of a product's two operands, or the parts of them along one dimension.
struct Operands {
  int64_t first, second;
};

// Computes one element of the result.
template <typename T>
double SumAt(const Convolution& c, const T* first, const T* second, int64_t place) {
  const bool is_forward = c.kind == ConvolutionKind::kForward;
  const bool is_input = c.kind == ConvolutionKind::kBackwardInput;
  const int64_t channels = c.image_channels / c.group_count;
  const int64_t filters = c.output_channels / c.group_count;
  const Strides image = ImageStrides(c), output = OutputStrides(c);
  // Between taps, and `channel` between image channels.
  Strides filter = StridesOf(Layout::kNHWC, c.filter_depth, c.filter_height, c.filter_width,
                             channels * c.output_channels);
  filter.channel = c.output_channels;
  const Strides& result = is_forward ? output : is_input ? image : filter;

  const auto operands = [&](int64_t in_image, int64_t in_filter, int64_t in_output) -> Operands {
    if (is_forward) return {in_image, in_filter};
    return {is_input ? in_filter : in_image, in_output};
  };
  std::vector<Operands> products = {{0, 0}};
  const auto extend = [&](const SpatialSizes& s, int64_t image_stride, int64_t filter_stride,
                          int64_t output_stride, int64_t result_stride) {
    const int64_t size = is_forward ? s.output : is_input ? s.image : s.filter;
    const int64_t at = place / result_stride % size;
    std::vector<Operands> extended;
    ForEachPosition(s, [&](int64_t position, int64_t tap, int64_t read) {
      if ((is_forward ? position : is_input ? read : tap) != at) return;
      const Operands more =
          operands(read * image_stride, tap * filter_stride, position * output_stride);
      for (const Operands& each : products) {
        extended.push_back({each.first + more.first, each.second + more.second});
      }
    });
    products = std::move(extended);
  };
  extend({c.batch, 1, c.batch, 1, 1, 0, 0}, image.batch, filter.batch, output.batch, result.batch);
  for (size_t i = 0; i < 3; ++i) {
    extend(SpatialSizesOf(c)[i], image.spatial[i], filter.spatial[i], output.spatial[i],
           result.spatial[i]);
  }

  // A dimension that the result lacks runs over the whole group.
  const int64_t own_channel = place / result.channel % (is_input ? c.image_channels : channels);
  const int64_t own_filter = place / (is_forward ? result.channel : 1) % c.output_channels;
  const int64_t group = is_input ? own_channel / channels : own_filter / filters;
  double sum = 0;
  for (int64_t n = 0; n < (is_forward ? channels : is_input ? filters : 1); ++n) {
    const int64_t i = is_forward ? n : own_channel % channels;
    const int64_t k = group * filters + (is_input ? n : own_filter % filters);
    const Operands pair = operands((group * channels + i) * image.channel,
                                   i * c.output_channels + k, k * output.channel);
    for (const Operands& each : products) {
      sum += static_cast<double>(first[each.first + pair.first]) *
             static_cast<double>(second[each.second + pair.second]);
    }
  }
  return sum;
}

// Passes NaN on, as TensorFlow's activations do.
double Activate(const Convolution& c, double x) {
  switch (c.activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kRelu6:
      return x < 0 ? 0 : (x > 6 ? 6 : x);
    case Activation::kLeakyRelu:
      return x > 0 ? x : x * static_cast<double>(c.leaky_relu_alpha);
    case Activation::kElu:
      return x < 0 ? std::expm1(x) : x;
  }
  return x;
}

}  // namespace

std::vector<int64_t> InputElements(const Convolution& c) {
  if (c.kind == ConvolutionKind::kBackwardInput) return {c.filter_elements(), c.output_elements()};
  if (c.kind == ConvolutionKind::kBackwardFilter) return {c.image_elements(), c.output_elements()};
  if (!c.has_bias) return {c.image_elements(), c.filter_elements()};
  return {c.image_elements(), c.filter_elements(), c.output_channels};
}

void Decode(DataType dtype, const void* tensor, int64_t elements, double* values) {
  WithType(dtype, [&](auto* type) {
    const auto* const from = static_cast<decltype(type)>(const_cast<void*>(tensor));
    std::transform(from, from + elements, values, [](auto x) { return static_cast<double>(x); });
  });
}

std::vector<double> Decode(DataType dtype, const void* tensor, int64_t elements) {
  std::vector<double> values(elements);
  Decode(dtype, tensor, elements, values.data());
  return values;
}

void Encode(DataType dtype, const double* values, int64_t elements, void* tensor) {
  WithType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    std::transform(values, values + elements, static_cast<T*>(tensor),
                   [](double x) { return static_cast<T>(x); });
  });
}

void Convolve(const Convolution& c, const std::vector<const double*>& inputs, double* result) {
  const double* const first = inputs[0];
  const double* const second = inputs[1];
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t channel = OutputStrides(c).channel;
  std::fill_n(result, c.result_elements(), 0.0);
  switch (c.kind) {
    case ConvolutionKind::kForward:
      ForEachRun(c, [&](int64_t x, int64_t f, int64_t y) {
        const double image = first[x];
        for (int64_t k = 0; k < filters; ++k) result[y + k * channel] += image * second[f + k];
      });
      for (int64_t y = 0; y < c.output_elements(); ++y) {
        const int64_t k = y / channel % c.output_channels;
        result[y] = Activate(c, result[y] + (c.has_bias ? inputs[2][k] : 0.0));
      }
      break;
    case ConvolutionKind::kBackwardInput:
      ForEachRun(c, [&](int64_t x, int64_t f, int64_t y) {
        double sum = 0;
        for (int64_t k = 0; k < filters; ++k) sum += first[f + k] * second[y + k * channel];
        result[x] += sum;
      });
      break;
    case ConvolutionKind::kBackwardFilter:
      ForEachRun(c, [&](int64_t x, int64_t f, int64_t y) {
        const double image = first[x];
        for (int64_t k = 0; k < filters; ++k) result[f + k] += image * second[y + k * channel];
      });
      break;
  }
}

std::vector<double> ConvolveAt(const Convolution& c, const std::vector<const void*>& inputs,
                               const std::vector<int64_t>& places) {
  std::vector<double> values;
  const int64_t channel = OutputStrides(c).channel;
  WithType(c.dtype, [&](auto* type) {
    using T = const std::remove_pointer_t<decltype(type)>;
    for (const int64_t place : places) {
      double value = SumAt(c, static_cast<T*>(inputs[0]), static_cast<T*>(inputs[1]), place);
      if (c.has_bias) {
        const int64_t k = place / channel % c.output_channels;
        value += static_cast<double>(static_cast<T*>(inputs[2])[k]);
      }
      values.push_back(c.kind == ConvolutionKind::kForward ? Activate(c, value) : value);
    }
  });
  return values;
}

std::vector<double> Convolve(const Convolution& c, const std::vector<std::vector<double>>& inputs) {
  std::vector<const double*> pointers;
  for (const std::vector<double>& input : inputs) pointers.push_back(input.data());
  std::vector<double> result(c.result_elements());
  Convolve(c, pointers, result.data());
  return result;
}

}  // namespace tf_interop
