// The names of what cuDNN can run for a convolution, as they stand in plans and profiles.
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

// An algorithm of cuDNN's legacy API: its enumerator without the prefix that all of a kind share,
// such as WINOGRAD_NONFUSED or ALGO_1.
struct LegacyTag {
  std::string name;

  bool operator==(const LegacyTag& other) const { return name == other.name; }
};

using AlgorithmTag = std::variant<EngineTag, LegacyTag>;

// How a convolution is put to cuDNN. The plain one hands it over as it is; each of the others
// makes up for something that engines may lack, at the price of work outside the engine.
struct Formulation {
  // Bias and activation run as an operation graph of their own after the convolution.
  bool splits_epilogue = false;
  // Image and output are NHWC and are transposed, so that cuDNN computes in NCHW (of volumes NDHWC
  // and NCDHW).
  bool uses_nchw = false;

  bool operator==(const Formulation& other) const {
    return splits_epilogue == other.splits_epilogue && uses_nchw == other.uses_nchw;
  }
};

// A pinned algorithm: what to ask cuDNN for, and what is to compute it. Written as the tag after
// the words of the formulation, in this order: `split+nchw+eng4_k2=1`, `nchw+FFT`. Without a word
// the formulation is the first one that the engine takes, which is the plain one where it can be.
struct Algorithm {
  std::optional<Formulation> formulation;
  AlgorithmTag tag;

  bool operator==(const Algorithm& other) const {
    return formulation == other.formulation && tag == other.tag;
  }
};

// The legacy names of one kind of convolution, each at the index that is its enumerator's value.
const std::vector<std::string>& LegacyNamesOf(ConvolutionKind kind);

std::string ToString(const EngineTag& engine);
std::string ToString(const AlgorithmTag& tag);
// The words of the formulation, or "plain".
std::string ToString(const Formulation& formulation);
std::string ToString(const Algorithm& algorithm);

// Reads what ToString writes, and knobs in any order. Returns kInvalidArgument for anything else.
Status ParseAlgorithm(const std::string& text, Algorithm* algorithm);

// Whether the output is more than the plain convolution.
bool HasEpilogue(const Convolution& convolution);

// kInvalidArgument where `convolution` is not valid, or reads or computes nothing, which cuDNN has
// no form for.
Status CheckComputesSomething(const Convolution& convolution);

// The formulations of `convolution` in the order in which they are tried: plain, split, nchw, nchw
// and split; without those that would change nothing. Unequal paddings stay as they are, which
// cuDNN's legacy API refuses.
std::vector<Formulation> FormulationsOf(const Convolution& convolution);

bool HasAsymmetricPadding(const Convolution& convolution);

// What remains after transposing: convolution and epilogue.
Convolution FormulatedConvolution(const Convolution& convolution, const Formulation& formulation);

// Likewise, without the epilogue where that is split off.
Convolution ExecutedConvolution(const Convolution& convolution, const Formulation& formulation);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_ALGORITHM_H_
