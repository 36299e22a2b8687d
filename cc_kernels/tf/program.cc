#include "cc_kernels/tf/program.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

std::optional<Operand> ParseOperand(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  Operand operand;
  operand.is_step = parts[0] == "steps";
  if ((!operand.is_step && parts[0] != "inputs") || parts.size() != (operand.is_step ? 3 : 2)) {
    return std::nullopt;
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    int& number = i == 1 ? operand.index : operand.port;
    if (!absl::SimpleAtoi(parts[i], &number) || number < 0) return std::nullopt;
  }
  return operand;
}

std::string ToString(const Operand& operand) {
  return operand.is_step ? absl::StrCat("steps:", operand.index, ":", operand.port)
                         : absl::StrCat("inputs:", operand.index);
}

absl::Status ParseSteps(const std::vector<std::string>& serialized,
                        std::vector<tensorflow::NodeDef>* steps) {
  for (const std::string& each : serialized) {
    if (steps->emplace_back().ParseFromString(each)) continue;
    return InvalidArgument("Expected a serialized NodeDef at step ", steps->size() - 1,
                           ", got other bytes.");
  }
  return absl::OkStatus();
}

void RemoveSteps(const std::vector<bool>& is_removed, std::vector<tensorflow::NodeDef>* steps,
                 std::vector<std::string>* results) {
  std::vector<int> places;
  std::vector<tensorflow::NodeDef> left;
  for (size_t i = 0; i < steps->size(); ++i) {
    places.push_back(static_cast<int>(left.size()));
    if (!is_removed[i]) left.push_back(std::move((*steps)[i]));
  }
  const auto rename = [&places](std::string* text) {
    std::optional<Operand> operand = ParseOperand(*text);
    const bool is_known =
        operand.has_value() && operand->is_step && operand->index < static_cast<int>(places.size());
    if (!is_known) return;
    operand->index = places[operand->index];
    *text = ToString(*operand);
  };
  for (tensorflow::NodeDef& step : left) {
    for (std::string& operand : *step.mutable_input()) rename(&operand);
  }
  for (std::string& result : *results) rename(&result);
  *steps = std::move(left);
}

}  // namespace tf_interop
