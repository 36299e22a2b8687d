// The text of a prepared convolution, from which it can be made again on the same device and cuDNN.
#ifndef TF_INTEROP_CORE_CUDNN_SERIALIZED_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_SERIALIZED_CONVOLUTION_H_

#include <cstddef>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

struct SerializedConvolution {
  size_t cudnn_version = 0;
  std::string convolution;         // as DescribeExactly gives it
  std::string algorithm;           // its full name
  std::vector<std::string> plans;  // cuDNN's texts, in order of execution
};

// One line that differs for any two convolutions that differ.
std::string DescribeExactly(const Convolution& convolution);

std::string WriteSerialized(const SerializedConvolution& serialized);

// Reads what WriteSerialized wrote. Returns kInvalidArgument, saying where, for a text that is
// damaged, kUnsupported for one of another version of this format.
Status ReadSerialized(const std::string& text, SerializedConvolution* serialized);

// kUnsupported, naming the difference, where `serialized` is of another convolution or cuDNN.
Status CheckOfSameOrigin(const SerializedConvolution& serialized, const Convolution& convolution,
                         size_t cudnn_version);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_SERIALIZED_CONVOLUTION_H_
