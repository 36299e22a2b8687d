#include "cc_kernels/core/host/reference_convolution.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "Eigen/Core"

namespace tf_interop {
namespace {

// Calls visit(T*) with a null pointer of the type that stands for `dtype`.
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

// Elements between neighbours of an image or an output.
struct Strides {
  int64_t batch, depth, height, width, channel;
};

Strides StridesOf(Layout layout, int64_t depth, int64_t height, int64_t width, int64_t channels) {
  const int64_t pixels = depth * height * width;
  if (layout == Layout::kNHWC) {
    return {pixels * channels, height * width * channels, width * channels, channels, 1};
  }
  return {pixels * channels, height * width, width, 1, pixels};
}

Strides ImageStrides(const Convolution& c) {
  return StridesOf(c.layout, c.image_depth, c.image_height, c.image_width, c.image_channels);
}

Strides OutputStrides(const Convolution& c) {
  return StridesOf(c.layout, c.output_depth, c.output_height, c.output_width, c.output_channels);
}

// Calls visit(output position, tap, image position) along one spatial dimension. Taps that read
// padding are left out: they add zero.
template <typename Visit>
void ForEachPosition(int64_t image, int64_t filter, int64_t output, int64_t stride,
                     int64_t dilation, int64_t pad_before, const Visit& visit) {
  for (int64_t position = 0; position < output; ++position) {
    for (int64_t tap = 0; tap < filter; ++tap) {
      const int64_t read = position * stride + tap * dilation - pad_before;
      if (read >= 0 && read < image) visit(position, tap, read);
    }
  }
}

// Calls visit(image, filter, output) with the offsets of the first products of every run: those of
// one image element with all filters of its group. In a run filters are neighbours, and outputs a
// channel apart.
template <typename Visit>
void ForEachRun(const Convolution& c, const Visit& visit) {
  const Strides image = ImageStrides(c), output = OutputStrides(c);
  const int64_t channels = c.image_channels / c.group_count;
  const int64_t filters = c.output_channels / c.group_count;
  const auto along_channels = [&](int64_t x, int64_t tap, int64_t y) {
    for (int64_t i = 0; i < c.image_channels; ++i) {
      const int64_t k = i / channels * filters;
      visit(x + i * image.channel, (tap * channels + i % channels) * c.output_channels + k,
            y + k * output.channel);
    }
  };
  const auto along_width = [&](int64_t x, int64_t row, int64_t y) {
    ForEachPosition(c.image_width, c.filter_width, c.output_width, c.stride_width, c.dilation_width,
                    c.pad_left, [&](int64_t q, int64_t s, int64_t w) {
                      along_channels(x + w * image.width, row * c.filter_width + s,
                                     y + q * output.width);
                    });
  };
  const auto along_height = [&](int64_t x, int64_t plane, int64_t y) {
    ForEachPosition(c.image_height, c.filter_height, c.output_height, c.stride_height,
                    c.dilation_height, c.pad_top, [&](int64_t p, int64_t r, int64_t h) {
                      along_width(x + h * image.height, plane * c.filter_height + r,
                                  y + p * output.height);
                    });
  };
  for (int64_t n = 0; n < c.batch; ++n) {
    ForEachPosition(c.image_depth, c.filter_depth, c.output_depth, c.stride_depth, c.dilation_depth,
                    c.pad_front, [&](int64_t o, int64_t t, int64_t d) {
                      along_height(n * image.batch + d * image.depth, t,
                                   n * output.batch + o * output.depth);
                    });
  }
}

// Where the operands of a product are, along one dimension.
struct Operands {
  int64_t first, second;
};

// The sum of products that one element of the result is.
template <typename T>
double SumAt(const Convolution& c, const T* first, const T* second, int64_t place) {
  const bool is_forward = c.kind == ConvolutionKind::kForward;
  const bool is_input = c.kind == ConvolutionKind::kBackwardInput;
  const int64_t channels = c.image_channels / c.group_count;
  const int64_t filters = c.output_channels / c.group_count;
  const Strides image = ImageStrides(c), output = OutputStrides(c);
  // Of taps; `channel` is of image channels.
  Strides filter = StridesOf(Layout::kNHWC, c.filter_depth, c.filter_height, c.filter_width,
                             channels * c.output_channels);
  filter.channel = c.output_channels;
  const Strides& result = is_forward ? output : is_input ? image : filter;

  const auto operands = [&](int64_t in_image, int64_t in_filter, int64_t in_output) -> Operands {
    if (is_forward) return {in_image, in_filter};
    return {is_input ? in_filter : in_image, in_output};
  };
  const auto along = [&](int64_t Strides::* dimension, int64_t image_size, int64_t filter_size,
                         int64_t output_size, int64_t stride, int64_t dilation, int64_t pad) {
    std::vector<Operands> all;
    const int64_t size = is_forward ? output_size : is_input ? image_size : filter_size;
    const int64_t at = place / (result.*dimension) % size;
    ForEachPosition(image_size, filter_size, output_size, stride, dilation, pad,
                    [&](int64_t position, int64_t tap, int64_t read) {
                      if ((is_forward ? position : is_input ? read : tap) != at) return;
                      all.push_back(operands(read * image.*dimension, tap * filter.*dimension,
                                             position * output.*dimension));
                    });
    return all;
  };
  const std::vector<Operands> batches = along(&Strides::batch, c.batch, 1, c.batch, 1, 1, 0);
  const std::vector<Operands> planes =
      along(&Strides::depth, c.image_depth, c.filter_depth, c.output_depth, c.stride_depth,
            c.dilation_depth, c.pad_front);
  const std::vector<Operands> rows =
      along(&Strides::height, c.image_height, c.filter_height, c.output_height, c.stride_height,
            c.dilation_height, c.pad_top);
  const std::vector<Operands> columns =
      along(&Strides::width, c.image_width, c.filter_width, c.output_width, c.stride_width,
            c.dilation_width, c.pad_left);

  // Of its group; what the result has no dimension for runs over all of the group.
  const int64_t own_channel = place / result.channel % (is_input ? c.image_channels : channels);
  const int64_t own_filter = place / (is_forward ? result.channel : 1) % c.output_channels;
  const int64_t group = is_input ? own_channel / channels : own_filter / filters;
  std::vector<Operands> pairs;
  for (int64_t n = 0; n < (is_forward ? channels : is_input ? filters : 1); ++n) {
    const int64_t i = is_forward ? n : own_channel % channels;
    const int64_t k = group * filters + (is_input ? n : own_filter % filters);
    pairs.push_back(operands((group * channels + i) * image.channel, i * c.output_channels + k,
                             k * output.channel));
  }

  double sum = 0;
  for (const Operands& n : batches) {
    for (const Operands& d : planes) {
      for (const Operands& h : rows) {
        for (const Operands& w : columns) {
          const T* const a = first + n.first + d.first + h.first + w.first;
          const T* const b = second + n.second + d.second + h.second + w.second;
          for (const Operands& i : pairs) {
            sum += static_cast<double>(a[i.first]) * static_cast<double>(b[i.second]);
          }
        }
      }
    }
  }
  return sum;
}

// Written so that NaN passes, as TensorFlow's activations let it.
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

double MultiplyAdds(const Convolution& c) {
  double product = 1;
  for (const int64_t size :
       {c.batch, c.output_depth, c.output_height, c.output_width, c.output_channels, c.filter_depth,
        c.filter_height, c.filter_width, c.image_channels / c.group_count}) {
    product *= static_cast<double>(size);
  }
  return product;
}

std::vector<int64_t> InputElements(const Convolution& c) {
  switch (c.kind) {
    case ConvolutionKind::kForward:
      if (c.has_bias) return {c.image_elements(), c.filter_elements(), c.output_channels};
      return {c.image_elements(), c.filter_elements()};
    case ConvolutionKind::kBackwardInput:
      return {c.filter_elements(), c.output_elements()};
    case ConvolutionKind::kBackwardFilter:
      return {c.image_elements(), c.output_elements()};
  }
  return {};
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
