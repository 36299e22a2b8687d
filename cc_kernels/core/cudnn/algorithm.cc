#include "cc_kernels/core/cudnn/algorithm.h"

#include <charconv>
#include <limits>
#include <string_view>

namespace tf_interop {
namespace {

constexpr std::string_view kPad = "pad+";
constexpr std::string_view kSplit = "split+";
constexpr std::string_view kNchw = "nchw+";

// cudnnConvolutionFwdAlgo_t, ...BwdDataAlgo_t and ...BwdFilterAlgo_t without their prefixes.
constexpr std::string_view kLegacyNames[] = {
    "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM",   "DIRECT", "FFT", "FFT_TILING", "WINOGRAD",
    "ALGO_0",        "WINOGRAD_NONFUSED",     "ALGO_1", "ALGO_3",
};

// Knob types are values of a C enumeration.
constexpr int64_t kLargestKnobType = std::numeric_limits<int>::max();

bool IsLegacyName(std::string_view text) {
  for (const std::string_view name : kLegacyNames) {
    if (text == name) return true;
  }
  return false;
}

bool Consume(std::string_view prefix, std::string_view* text) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Digits only, so that an algorithm has one name: a sign, blanks, a leading zero or an overflow are
// refused.
bool ConsumeNumber(std::string_view* text, int64_t* number) {
  const auto is_digit = [text](size_t i) {
    return i < text->size() && (*text)[i] >= '0' && (*text)[i] <= '9';
  };
  if (!is_digit(0) || ((*text)[0] == '0' && is_digit(1))) return false;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc()) return false;
  text->remove_prefix(end - text->data());
  return true;
}

bool ConsumeKnobValue(std::string_view* text, int64_t* value) {
  const bool negative = Consume("-", text);
  if (!ConsumeNumber(text, value)) return false;
  if (negative) *value = -*value;
  return true;
}

bool ParseEngineTag(std::string_view text, EngineTag* engine) {
  if (!Consume("eng", &text) || !ConsumeNumber(&text, &engine->index)) return false;
  while (!text.empty()) {
    int64_t type = 0;
    int64_t value = 0;
    if (!Consume("_k", &text) || !ConsumeNumber(&text, &type) || !Consume("=", &text) ||
        !ConsumeKnobValue(&text, &value) || type > kLargestKnobType ||
        !engine->knobs.emplace(type, value).second) {
      return false;
    }
  }
  return true;
}

std::string FormulationPrefix(const Formulation& formulation) {
  std::string text;
  if (formulation.pads_image) text += kPad;
  if (formulation.splits_epilogue) text += kSplit;
  if (formulation.uses_nchw) text += kNchw;
  return text;
}

}  // namespace

std::string ToString(const EngineTag& engine) {
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
  return FormulationPrefix(algorithm.formulation.value_or(Formulation())) +
         ToString(algorithm.engine);
}

Status ParseAlgorithm(const std::string& text, Algorithm* algorithm) {
  if (IsLegacyName(text)) {
    return Unsupported("Expected an engine of cuDNN's graph API such as 'eng4_k2=1', got '" + text +
                       "', a name of its legacy API, which is not supported yet. Profile the "
                       "convolution with engines instead.");
  }
  Algorithm parsed;
  std::string_view rest = text;
  Formulation formulation;
  formulation.pads_image = Consume(kPad, &rest);
  formulation.splits_epilogue = Consume(kSplit, &rest);
  formulation.uses_nchw = Consume(kNchw, &rest);
  if (rest.size() < text.size()) parsed.formulation = formulation;
  if (!ParseEngineTag(rest, &parsed.engine)) {
    return InvalidArgument(
        "Expected an algorithm of the form '[pad+][split+][nchw+]eng<index>_k<type>=<value>...', "
        "got '" +
        text + "'. Use a name that a profile of this device holds.");
  }
  *algorithm = std::move(parsed);
  return Status::Ok();
}

}  // namespace tf_interop
