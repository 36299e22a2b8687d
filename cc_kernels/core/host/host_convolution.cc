#include "cc_kernels/core/host/host_convolution.h"

#include <cmath>

#include "Eigen/Core"
#include "cc_kernels/core/host/nhwc_convolution.h"

namespace tf_interop {
namespace {

// Which of the four tensors of a convolution.
enum class Role { kImage, kFilter, kOutput, kBias };

// Roles of the inputs and of the result, in the order of ConvolutionBuffers.
struct Roles {
  Role inputs[3];
  int input_count;
  Role result;
};

Roles RolesOf(const Convolution& c) {
  switch (c.kind) {
    case ConvolutionKind::kForward:
      return {{Role::kImage, Role::kFilter, Role::kBias}, c.has_bias ? 3 : 2, Role::kOutput};
    case ConvolutionKind::kBackwardInput:
      return {{Role::kFilter, Role::kOutput, Role::kBias}, 2, Role::kImage};
    case ConvolutionKind::kBackwardFilter:
      return {{Role::kImage, Role::kOutput, Role::kBias}, 2, Role::kFilter};
  }
  return {};
}

// A tensor as a matrix per image: [batch, pixels, channels] in NHWC, [batch, channels, pixels] in
// NCHW. Filter and bias have one layout only.
struct Extent {
  int64_t batch, pixels, channels;
  bool is_nchw;
  int64_t elements() const { return batch * pixels * channels; }
};

Extent ExtentOf(const Convolution& c, Role role) {
  const bool is_nchw = c.layout == Layout::kNCHW;
  switch (role) {
    case Role::kImage:
      return {c.batch, c.image_pixels(), c.image_channels, is_nchw};
    case Role::kOutput:
      return {c.batch, c.output_pixels(), c.output_channels, is_nchw};
    case Role::kFilter:
      return {1, 1, c.filter_elements(), false};
    case Role::kBias:
      return {1, 1, c.output_channels, false};
  }
  return {};
}

// The size of the type that arithmetic is in.
size_t ComputedSize(DataType dtype) {
  return dtype == DataType::kDouble ? sizeof(double) : sizeof(float);
}

bool NeedsConversion(const Convolution& c, const Extent& extent) {
  return c.dtype == DataType::kHalf || c.dtype == DataType::kBFloat16 || extent.is_nchw;
}

template <typename From, typename To>
void ToNhwc(const Extent& extent, const From* from, To* to) {
  const int64_t pixel_stride = extent.is_nchw ? 1 : extent.channels;
  const int64_t channel_stride = extent.is_nchw ? extent.pixels : 1;
  for (int64_t n = 0; n < extent.batch; ++n, from += extent.pixels * extent.channels) {
    for (int64_t pixel = 0; pixel < extent.pixels; ++pixel) {
      for (int64_t channel = 0; channel < extent.channels; ++channel) {
        *to++ = static_cast<To>(from[pixel * pixel_stride + channel * channel_stride]);
      }
    }
  }
}

template <typename From, typename To>
void FromNhwc(const Extent& extent, const From* from, To* to) {
  const int64_t pixel_stride = extent.is_nchw ? 1 : extent.channels;
  const int64_t channel_stride = extent.is_nchw ? extent.pixels : 1;
  for (int64_t n = 0; n < extent.batch; ++n, to += extent.pixels * extent.channels) {
    for (int64_t pixel = 0; pixel < extent.pixels; ++pixel) {
      for (int64_t channel = 0; channel < extent.channels; ++channel) {
        to[pixel * pixel_stride + channel * channel_stride] = static_cast<To>(*from++);
      }
    }
  }
}

// Reads a tensor of the convolution's dtype and layout.
void ReadTensor(DataType dtype, const Extent& extent, const void* from, float* to) {
  switch (dtype) {
    case DataType::kFloat:
      return ToNhwc(extent, static_cast<const float*>(from), to);
    case DataType::kHalf:
      return ToNhwc(extent, static_cast<const Eigen::half*>(from), to);
    case DataType::kBFloat16:
      return ToNhwc(extent, static_cast<const Eigen::bfloat16*>(from), to);
    case DataType::kDouble:
      break;  // read as double
  }
}

void ReadTensor(DataType, const Extent& extent, const void* from, double* to) {
  ToNhwc(extent, static_cast<const double*>(from), to);
}

// Writes one; half and bfloat16 are rounded to nearest, ties to even.
void WriteTensor(DataType dtype, const Extent& extent, const float* from, void* to) {
  switch (dtype) {
    case DataType::kFloat:
      return FromNhwc(extent, from, static_cast<float*>(to));
    case DataType::kHalf:
      return FromNhwc(extent, from, static_cast<Eigen::half*>(to));
    case DataType::kBFloat16:
      return FromNhwc(extent, from, static_cast<Eigen::bfloat16*>(to));
    case DataType::kDouble:
      break;  // written from double
  }
}

void WriteTensor(DataType, const Extent& extent, const double* from, void* to) {
  FromNhwc(extent, from, static_cast<double*>(to));
}

template <typename T>
T Activate(const Convolution& c, T x) {
  // Written so that NaN passes, as TensorFlow's activations let it.
  switch (c.activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kRelu6:
      return x < 0 ? 0 : (x > 6 ? 6 : x);
    case Activation::kLeakyRelu:
      return x > 0 ? x : x * static_cast<T>(c.leaky_relu_alpha);
    case Activation::kElu:
      return x < 0 ? std::expm1(x) : x;
  }
  return x;
}

// output = activation(output + bias) for `pixels` pixels.
template <typename T>
void ApplyBiasAndActivation(const Convolution& c, const T* bias, int64_t pixels, T* output) {
  for (int64_t pixel = 0; pixel < pixels; ++pixel, output += c.output_channels) {
    for (int64_t k = 0; k < c.output_channels; ++k) {
      output[k] = Activate(c, bias == nullptr ? output[k] : output[k] + bias[k]);
    }
  }
}

}  // namespace

Status ParseHostAlgorithm(const std::string& name, HostAlgorithm* algorithm) {
  for (const HostAlgorithm known :
       {HostAlgorithm::kIm2colGemm, HostAlgorithm::kEigenSpatial, HostAlgorithm::kDirect}) {
    if (name == HostAlgorithmName(known)) {
      *algorithm = known;
      return Status::Ok();
    }
  }
  return InvalidArgument(
      "Expected an algorithm of the host backend (IM2COL_GEMM, EIGEN_SPATIAL or DIRECT), got " +
      name + ".");
}

const char* HostAlgorithmName(HostAlgorithm algorithm) {
  switch (algorithm) {
    case HostAlgorithm::kIm2colGemm:
      return "IM2COL_GEMM";
    case HostAlgorithm::kEigenSpatial:
      return "EIGEN_SPATIAL";
    case HostAlgorithm::kDirect:
      return "DIRECT";
  }
  return "";
}

bool CanRun(HostAlgorithm algorithm, const Convolution& convolution) {
  return algorithm != HostAlgorithm::kEigenSpatial || CanRunEigenSpatial(convolution);
}

HostConvolution::HostConvolution(const Convolution& convolution, HostAlgorithm algorithm)
    : convolution_(convolution), algorithm_(algorithm) {
  const Roles roles = RolesOf(convolution_);
  const auto count_conversion = [this](Role role) {
    const Extent extent = ExtentOf(convolution_, role);
    if (NeedsConversion(convolution_, extent)) workspace_elements_ += extent.elements();
  };
  for (int i = 0; i < roles.input_count; ++i) count_conversion(roles.inputs[i]);
  count_conversion(roles.result);
  if (algorithm_ == HostAlgorithm::kIm2colGemm) {
    workspace_elements_ += Im2colGemmScratchElements(convolution_);
  }
}

size_t HostConvolution::workspace_bytes() const {
  return workspace_elements_ * ComputedSize(convolution_.dtype);
}

size_t HostConvolution::transformed_filter_bytes() const {
  const bool reads_filter = convolution_.kind != ConvolutionKind::kBackwardFilter;
  const Extent filter = ExtentOf(convolution_, Role::kFilter);
  if (!reads_filter || !NeedsConversion(convolution_, filter)) return 0;
  return filter.elements() * sizeof(float);
}

void HostConvolution::TransformFilter(const void* filter, void* transformed) const {
  ReadTensor(convolution_.dtype, ExtentOf(convolution_, Role::kFilter), filter,
             static_cast<float*>(transformed));
}

void HostConvolution::Run(const ConvolutionBuffers& buffers, void* workspace,
                          const ParallelFor& parallel_for) const {
  if (convolution_.dtype == DataType::kDouble) {
    RunIn(buffers, static_cast<double*>(workspace), parallel_for);
  } else {
    RunIn(buffers, static_cast<float*>(workspace), parallel_for);
  }
}

template <typename T>
void HostConvolution::RunIn(const ConvolutionBuffers& buffers, T* workspace,
                            const ParallelFor& parallel_for) const {
  const Convolution& c = convolution_;
  NhwcTensors<T> tensors;
  const auto bind = [&tensors](Role role, T* data) {
    switch (role) {
      case Role::kImage:
        tensors.image = data;
        break;
      case Role::kFilter:
        tensors.filter = data;
        break;
      case Role::kOutput:
        tensors.output = data;
        break;
      case Role::kBias:
        tensors.bias = data;
        break;
    }
  };

  const Roles roles = RolesOf(c);
  for (int i = 0; i < roles.input_count; ++i) {
    const Extent extent = ExtentOf(c, roles.inputs[i]);
    // Inputs are only read; one struct serves all kinds, so its pointers are not const.
    if (roles.inputs[i] == Role::kFilter && buffers.transformed_filter != nullptr) {
      bind(Role::kFilter, static_cast<T*>(const_cast<void*>(buffers.transformed_filter)));
      continue;
    }
    if (!NeedsConversion(c, extent)) {
      bind(roles.inputs[i], static_cast<T*>(const_cast<void*>(buffers.inputs[i])));
      continue;
    }
    ReadTensor(c.dtype, extent, buffers.inputs[i], workspace);
    bind(roles.inputs[i], workspace);
    workspace += extent.elements();
  }
  const Extent result = ExtentOf(c, roles.result);
  const bool convert_result = NeedsConversion(c, result);
  T* const computed = convert_result ? workspace : static_cast<T*>(buffers.result);
  if (convert_result) workspace += result.elements();
  bind(roles.result, computed);

  switch (algorithm_) {
    case HostAlgorithm::kIm2colGemm:
      RunIm2colGemm(c, tensors, workspace, parallel_for);
      break;
    case HostAlgorithm::kEigenSpatial:
      RunEigenSpatial(c, tensors, parallel_for);
      break;
    case HostAlgorithm::kDirect:
      RunDirect(c, tensors, parallel_for);
      break;
  }
  if (c.has_bias || c.activation != Activation::kNone) {
    const int64_t rows = c.batch * c.output_depth * c.output_height;
    ForEachItem(rows, parallel_for, [&](int, int64_t row) {
      ApplyBiasAndActivation(c, tensors.bias, c.output_width,
                             tensors.output + row * c.output_width * c.output_channels);
    });
  }

  if (convert_result) WriteTensor(c.dtype, result, computed, buffers.result);
}

}  // namespace tf_interop
