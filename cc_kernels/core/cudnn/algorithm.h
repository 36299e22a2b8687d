// The names of cuDNN's algorithms for a convolution, as plans and profiles contain them.
#ifndef TF_INTEROP_CORE_CUDNN_ALGORITHM_H_
#define TF_INTEROP_CORE_CUDNN_ALGORITHM_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// An engine of cuDNN's graph API with its knob settings. Written as cudnn-frontend writes it,
// `eng<index>_k<knob type>=<value>_k...`, but with the knobs in ascending order. The index is valid
// within one operation graph, on one GPU model and cuDNN version.
struct EngineTag {
  int64_t index = 0;
  std::map<int64_t, int64_t> knobs;  // value by knob type (cudnnBackendKnobType_t)
};

// An algorithm of cuDNN's legacy API: its enumerator without the common prefix, such as
// WINOGRAD_NONFUSED or ALGO_1.
struct LegacyTag {
  std::string name;
};

using AlgorithmTag = std::variant<EngineTag, LegacyTag>;

// The form in which cuDNN gets a convolution. The plain one changes nothing. The others make up for
// what engines may lack, with work outside the engine.
struct Formulation {
  // Bias and activation run after the convolution, as an operation graph of their own.
  bool splits_epilogue = false;
  // Image and output are NHWC and are transposed, so that cuDNN computes in NCHW (NDHWC and NCDHW
  // for volumes).
  bool uses_nchw = false;

  bool operator==(const Formulation& other) const {
    return splits_epilogue == other.splits_epilogue && uses_nchw == other.uses_nchw;
  }
};

// A pinned algorithm. Its name is the words of the formulation, then the tag:
// `split+nchw+eng4_k2=1`, `nchw+FFT`. Without words the formulation is the first that the engine
// accepts, the plain one if possible.
struct Algorithm {
  std::optional<Formulation> formulation;
  AlgorithmTag tag;
};

// The legacy names for one kind of convolution. The index of a name is its enumerator's value.
const std::vector<std::string>& LegacyNamesOf(ConvolutionKind kind);

std::string ToString(const AlgorithmTag& tag);
// The words of the formulation, or "plain".
std::string ToString(const Formulation& formulation);
std::string ToString(const Algorithm& algorithm);

// Reads the output of ToString, with the knobs in any order. Returns kInvalidArgument for anything
// else.
Status ParseAlgorithm(const std::string& text, Algorithm* algorithm);

bool HasEpilogue(const Convolution& convolution);

// Returns kInvalidArgument if `convolution` is not valid, or if it reads or computes nothing, which
// cuDNN cannot express.
Status CheckComputesSomething(const Convolution& convolution);

// The formulations that apply to `convolution`, in the order in which they are tried: plain, split,
// nchw, split and nchw. All keep unequal paddings, which cuDNN's legacy API refuses.
std::vector<Formulation> FormulationsOf(const Convolution& convolution);

bool HasAsymmetricPadding(const Convolution& convolution);

// The convolution and its epilogue after transposing.
Convolution FormulatedConvolution(const Convolution& convolution, const Formulation& formulation);

// The same, without an epilogue that is split off.
Convolution ExecutedConvolution(const Convolution& convolution, const Formulation& formulation);

// Returns kUnsupported if the padding is so wide that some outputs read padding alone, or wider
// than the image. On an H100, cuDNN 9.19 computed wrong filter gradients of volumes in double in
// the first case. On an H200 its heuristics crashed in the second, for the gradient of a 5x4 filter
// on an image of 3x2 with a padding of 3 at its right.
Status CheckPadding(const Convolution& convolution);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_ALGORITHM_H_
