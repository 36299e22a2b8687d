#include "cc_kernels/core/cudnn/algorithm.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

namespace tf_interop {
namespace {

constexpr std::string_view kSplit = "split+";
constexpr std::string_view kNchw = "nchw+";

// Knob types are ints to cuDNN.
constexpr int64_t kLargestInt = std::numeric_limits<int>::max();

bool IsLegacyName(std::string_view text) {
  for (const auto kind : {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput,
                          ConvolutionKind::kBackwardFilter}) {
    const std::vector<std::string>& names = LegacyNamesOf(kind);
    if (std::find(names.begin(), names.end(), text) != names.end()) return true;
  }
  return false;
}

bool Consume(std::string_view prefix, std::string_view* text) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Accepts a number only as std::to_string writes it, so that an algorithm has one name.
bool ConsumeNumber(std::string_view* text, int64_t* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  const size_t length = end - text->data();
  if (error != std::errc() || std::to_string(*number) != text->substr(0, length)) return false;
  text->remove_prefix(length);
  return true;
}

bool ParseEngineTag(std::string_view text, EngineTag* engine) {
  if (!Consume("eng", &text) || !ConsumeNumber(&text, &engine->index)) return false;
  bool is_name = engine->index >= 0;
  while (is_name && !text.empty()) {
    int64_t type = 0, value = 0;
    is_name = Consume("_k", &text) && ConsumeNumber(&text, &type) && Consume("=", &text) &&
              ConsumeNumber(&text, &value) && type >= 0 && type <= kLargestInt &&
              engine->knobs.emplace(type, value).second;
  }
  return is_name;
}

std::string FormulationPrefix(const Formulation& formulation) {
  std::string text;
  if (formulation.splits_epilogue) text += kSplit;
  if (formulation.uses_nchw) text += kNchw;
  return text;
}

}  // namespace

const std::vector<std::string>& LegacyNamesOf(ConvolutionKind kind) {
  // In the order of ConvolutionKind. Never destroyed: launches may come until the process ends.
  static const auto* const names = new std::vector<std::vector<std::string>>{
      {"IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING", "WINOGRAD",
       "WINOGRAD_NONFUSED"},
      {"ALGO_0", "ALGO_1", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"},
      {"ALGO_0", "ALGO_1", "FFT", "ALGO_3", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING"}};
  return (*names)[static_cast<size_t>(kind)];
}

std::string ToString(const AlgorithmTag& tag) {
  if (const auto* legacy = std::get_if<LegacyTag>(&tag)) return legacy->name;
  const auto& engine = std::get<EngineTag>(tag);
  std::string text = "eng" + std::to_string(engine.index);
  for (const auto& [type, value] : engine.knobs) {
    text += "_k" + std::to_string(type) + "=" + std::to_string(value);
  }
  return text;
}

std::string ToString(const Formulation& formulation) {
  std::string text = FormulationPrefix(formulation);
  if (text.empty()) return "plain";
  text.pop_back();
  return text;
}

std::string ToString(const Algorithm& algorithm) {
  return FormulationPrefix(algorithm.formulation.value_or(Formulation())) + ToString(algorithm.tag);
}

Status ParseAlgorithm(const std::string& text, Algorithm* algorithm) {
  Algorithm parsed;
  std::string_view rest = text;
  Formulation formulation;
  formulation.splits_epilogue = Consume(kSplit, &rest);
  formulation.uses_nchw = Consume(kNchw, &rest);
  if (rest.size() < text.size()) parsed.formulation = formulation;
  EngineTag engine;
  if (IsLegacyName(rest)) {
    parsed.tag = LegacyTag{std::string(rest)};
  } else if (ParseEngineTag(rest, &engine)) {
    parsed.tag = std::move(engine);
  } else {
    return InvalidArgument(
        "Expected an algorithm of the form '[split+][nchw+]' and 'eng<index>_k<type>=<value>...' "
        "or a name of cuDNN's legacy API such as 'WINOGRAD', got '" +
        text + "'. Use a name from a profile of this device.");
  }
  *algorithm = std::move(parsed);
  return Status::Ok();
}

bool HasEpilogue(const Convolution& convolution) {
  return convolution.has_bias || convolution.activation != Activation::kNone;
}

Status CheckComputesSomething(const Convolution& convolution) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(convolution));
  if (convolution.computes_something()) return Status::Ok();
  return InvalidArgument("Expected a convolution that reads and computes something, got " +
                         ToString(convolution) + ".");
}

std::vector<Formulation> FormulationsOf(const Convolution& convolution) {
  std::vector<Formulation> formulations;
  const auto add = [&](bool uses_nchw) {
    formulations.push_back({false, uses_nchw});
    // In an NCHW graph without a convolution, cuDNN 9.19 adds the bias to the first image only
    // (seen on an H100): it does not broadcast the first dimension.
    const bool is_nchw = uses_nchw || convolution.layout == Layout::kNCHW;
    const bool loses_bias = is_nchw && convolution.has_bias && convolution.batch > 1;
    if (HasEpilogue(convolution) && !loses_bias) formulations.push_back({true, uses_nchw});
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

Convolution ExecutedConvolution(const Convolution& convolution, const Formulation& formulation) {
  Convolution executed = FormulatedConvolution(convolution, formulation);
  if (formulation.splits_epilogue) {
    executed.has_bias = false;
    executed.activation = Activation::kNone;
  }
  return executed;
}

Status CheckPadding(const Convolution& convolution) {
  for (const SpatialSizes& sizes : SpatialSizesOf(convolution)) {
    const int64_t reach = (sizes.filter - 1) * sizes.dilation;
    const int64_t pad = std::max(sizes.pad_before, sizes.pad_after);
    if (pad <= std::min(reach, sizes.image)) continue;
    return Unsupported("Expected a padding of at most " + std::to_string(reach) +
                       ", the reach of the filter, and " + std::to_string(sizes.image) +
                       ", the image, got " + std::to_string(pad) + " in " + ToString(convolution) +
                       ". cuDNN is not reliable then, so TensorFlow's own kernel runs it.");
  }
  return Status::Ok();
}

}  // namespace tf_interop
