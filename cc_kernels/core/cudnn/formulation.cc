#include "cc_kernels/core/cudnn/formulation.h"

#include <algorithm>

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
  const bool pads = HasAsymmetricPadding(convolution);
  std::vector<Formulation> formulations;
  const auto add = [&](bool pads_image, bool uses_nchw) {
    formulations.push_back({pads_image, false, uses_nchw});
    if (splits) formulations.push_back({pads_image, true, uses_nchw});
  };
  add(false, false);
  if (pads) add(true, false);
  if (convolution.layout == Layout::kNHWC) add(pads, true);
  return formulations;
}

bool HasAsymmetricPadding(const Convolution& c) {
  return c.pad_front != c.pad_back || c.pad_top != c.pad_bottom || c.pad_left != c.pad_right;
}

ImageMargins MarginsOf(const Convolution& c) {
  const int64_t planes = std::min(c.pad_front, c.pad_back);
  const int64_t rows = std::min(c.pad_top, c.pad_bottom);
  const int64_t columns = std::min(c.pad_left, c.pad_right);
  return {c.pad_front - planes, c.pad_back - planes,  c.pad_top - rows,
          c.pad_bottom - rows,  c.pad_left - columns, c.pad_right - columns};
}

Convolution FormulatedConvolution(const Convolution& convolution, const Formulation& formulation) {
  Convolution formulated = convolution;
  if (formulation.pads_image) {
    const ImageMargins margins = MarginsOf(convolution);
    formulated.image_depth += margins.front + margins.back;
    formulated.image_height += margins.top + margins.bottom;
    formulated.image_width += margins.left + margins.right;
    formulated.pad_front = formulated.pad_back =
        std::min(convolution.pad_front, convolution.pad_back);
    formulated.pad_top = formulated.pad_bottom =
        std::min(convolution.pad_top, convolution.pad_bottom);
    formulated.pad_left = formulated.pad_right =
        std::min(convolution.pad_left, convolution.pad_right);
  }
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
