// A convolution written from its definition, in double, for tests to compare with. Shares no code
// with the library beyond the description of a convolution.
#ifndef TF_INTEROP_TESTS_CC_REFERENCE_CONVOLUTION_H_
#define TF_INTEROP_TESTS_CC_REFERENCE_CONVOLUTION_H_

#include <cstdint>
#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

// Tensors in the convolution's own layout, as doubles. The one that its kind computes is filled.
struct ReferenceTensors {
  std::vector<double> image, filter, output, bias;
};

// Sizes the three tensors (and bias), zero-filled.
ReferenceTensors MakeReferenceTensors(const Convolution& c);

void RunReference(const Convolution& c, ReferenceTensors* tensors);

// Fills in output sizes and, for "SAME", pads, from the other fields.
void CompleteSame(Convolution* c);
void CompleteFromPads(Convolution* c);

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_REFERENCE_CONVOLUTION_H_
