// Puts a launch together: where the executables of a convolution get and leave their tensors, and
// what has to be done around them.
//
// TensorFlow's filters are HWIO; cuDNN wants OHWI beside NHWC images and OIHW beside NCHW ones. A
// filter that is read is therefore transposed into the workspace first, one that is computed is
// transposed out of it last, except where the order of bytes is the same.
#ifndef TF_INTEROP_CORE_CUDNN_CUDNN_ASSEMBLY_H_
#define TF_INTEROP_CORE_CUDNN_CUDNN_ASSEMBLY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/cudnn_convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/executable.h"
#include "cc_kernels/core/cudnn/formulation.h"
#include "cc_kernels/core/cudnn/strided_copy.h"
#include "cc_kernels/core/cudnn/tensor_geometry.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// A place in the memory of a launch.
struct Place {
  // kFilter: the transformed filter that the launch was given, or else the workspace.
  enum class Base { kInput, kResult, kWorkspace, kFilter };
  Base base = Base::kResult;
  int input = 0;
  size_t offset_bytes = 0;

  static Place Input(int index) { return {Base::kInput, index, 0}; }
  static Place Result() { return {Base::kResult, 0, 0}; }
  static Place Workspace(size_t offset_bytes) { return {Base::kWorkspace, 0, offset_bytes}; }
  static Place Filter(size_t offset_bytes) { return {Base::kFilter, 0, offset_bytes}; }

  // cuDNN binds inputs and results alike as void*; inputs are only read.
  void* In(const CudnnLaunch& launch) const;
};

// Where the convolution's tensors are for the caller, in the order of ConvolutionBuffers.
struct TensorPlaces {
  Place image, filter, bias, output;
};

// Of one convolution in one formulation.
class CudnnAssembly {
 public:
  CudnnAssembly(const CudnnLibrary& library, const Convolution& convolution,
                const Formulation& formulation);

  // Finds a place for every tensor of the executables, and adds the steps before and after them.
  Status PlaceTensors();

  const Convolution& computed() const { return computed_; }
  // The workspace of everything but the executables.
  size_t copies_bytes() const { return used_bytes_; }

  // Puts the steps in order. `epilogue` is null unless the formulation splits it off.
  std::shared_ptr<const CudnnConvolution> Finish(std::unique_ptr<const Executable> convolution,
                                                 std::unique_ptr<const Executable> epilogue);

 private:
  using Bindings = std::vector<std::pair<int64_t, Place>>;

  // Executables run one after the other and share what comes after the copies.
  void AddExecution(std::unique_ptr<const Executable> executable, Bindings bindings,
                    CudnnProgram* program) const;

  Bindings ConvolutionBindings() const;
  Bindings EpilogueBindings() const;

  // Between HWIO and cuDNN's layout. The taps of the filter stay together in both, which makes it a
  // copy of three dimensions; in this form one side is an ordinary NHWC tensor, and the other an
  // NCHW one where cuDNN's filter is OHWI.
  CopyShape FilterCopy() const;

  Status PlaceFilter();
  Status PlaceImage();
  Status PlaceOutput();

  // Moves a tensor from the caller's layout to the executable's, where these differ.
  Status Transpose(int64_t channels, int64_t pixels, bool is_result, Place* place);

  // Adds a copy from the caller's tensor to the executable's before the executables or, for the
  // result, one in the other direction after them.
  Status AddCopy(const CopyShape& shape, Place callers, Place executables, bool is_result);

  Place Allocate(int64_t elements);

  const CudnnLibrary& library_;
  const Convolution original_;
  const Convolution computed_;
  const Formulation formulation_;
  TensorPlaces places_;  // of the executables' tensors
  Place convolved_;      // what the convolution's one writes or, backward, reads as its output
  std::unique_ptr<const StridedCopy> filter_copy_;
  std::vector<std::unique_ptr<const CudnnStep>> before_;
  std::vector<std::unique_ptr<const CudnnStep>> after_;
  size_t used_bytes_ = 0;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDNN_ASSEMBLY_H_
