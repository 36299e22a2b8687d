// The names of what cuDNN can run for a convolution, as they stand in plans and profiles.
#ifndef TF_INTEROP_CORE_CUDNN_ALGORITHM_H_
#define TF_INTEROP_CORE_CUDNN_ALGORITHM_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cc_kernels/core/status.h"

namespace tf_interop {

// An engine of cuDNN's graph API with its knob settings. Written as cudnn-frontend writes it:
// `eng<index>_k<knob type>=<value>_k...`, here with knobs in ascending order. The index counts
// within one operation graph, on one GPU model and cuDNN version.
struct EngineTag {
  int64_t index = 0;
  std::map<int64_t, int64_t> knobs;  // value by knob type (cudnnBackendKnobType_t)

  bool operator==(const EngineTag& other) const {
    return index == other.index && knobs == other.knobs;
  }
};

// How a convolution is put to cuDNN. The plain one hands it over as it is; each of the others
// makes up for something that engines may lack, at the price of work outside the engine.
struct Formulation {
  // Asymmetric padding: the image is copied into a larger one, and the rest of the padding is
  // symmetric.
  bool pads_image = false;
  // Bias and activation run as an operation graph of their own behind the convolution.
  bool splits_epilogue = false;
  // Image and output are NHWC and are transposed, so that cuDNN computes in NCHW.
  bool uses_nchw = false;

  bool operator==(const Formulation& other) const {
    return pads_image == other.pads_image && splits_epilogue == other.splits_epilogue &&
           uses_nchw == other.uses_nchw;
  }
};

// A pinned algorithm: what to ask cuDNN for, and the engine to ask. Written as the engine's tag
// behind the words of the formulation, in this order: `pad+split+nchw+eng4_k2=1`. Without a word
// the formulation is the first one that the engine takes, which is the plain one where it can be.
struct Algorithm {
  std::optional<Formulation> formulation;
  EngineTag engine;

  bool operator==(const Algorithm& other) const {
    return formulation == other.formulation && engine == other.engine;
  }
};

std::string ToString(const EngineTag& engine);
// The words of the formulation, or "plain".
std::string ToString(const Formulation& formulation);
std::string ToString(const Algorithm& algorithm);

// Reads what ToString writes. Returns kUnsupported for the names of cuDNN's legacy API
// (IMPLICIT_GEMM, WINOGRAD, ALGO_1 ...), kInvalidArgument for anything else.
Status ParseAlgorithm(const std::string& text, Algorithm* algorithm);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_ALGORITHM_H_
