#include "cc_kernels/core/cudnn/formulation.h"

#include "cc_kernels/core/cudnn/cudnn_graph.h"

namespace tf_interop {

Status CheckComputesSomething(const Convolution& convolution) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(convolution));
  if (!convolution.reads_nothing() && convolution.result_elements() != 0) return Status::Ok();
  return InvalidArgument("Expected a convolution that reads and computes something, got " +
                         ToString(convolution) + ".");
}

std::vector<Formulation> FormulationsOf(const Convolution& convolution) {
  const bool splits = HasEpilogue(convolution);
  std::vector<Formulation> formulations;
  const auto add = [&](bool uses_nchw) {
    formulations.push_back({false, uses_nchw});
    if (splits) formulations.push_back({true, uses_nchw});
  };
  add(false);
  if (convolution.layout == Layout::kNHWC) add(true);
  return formulations;
}

bool HasAsymmetricPadding(const Convolution& c) {
  return c.pad_front != c.pad_back || c.pad_top != c.pad_bottom || c.pad_left != c.pad_right;
}

Convolution FormulatedConvolution(const Convolution& convolution, const Formulation& formulation) {
  Convolution formulated = convolution;
  if (formulation.uses_nchw) formulated.layout = Layout::kNCHW;
  return formulated;
}

Convolution WithoutEpilogue(const Convolution& convolution) {
  Convolution plain = convolution;
  plain.has_bias = false;
  plain.activation = Activation::kNone;
  return plain;
}

Convolution ExecutedConvolution(const Convolution& convolution, const Formulation& formulation) {
  const Convolution formulated = FormulatedConvolution(convolution, formulation);
  return formulation.splits_epilogue ? WithoutEpilogue(formulated) : formulated;
}

}  // namespace tf_interop
