// Elementwise steps as one pass over memory.
//
// Each of TensorFlow's kernels for such operations reads and writes whole tensors. Joined, they run
// block by block on values that are in the nearest cache:
//
//     before                                       after
//     a ── Mul ─┐                                  a ─┐
//     b ── Mul ─┴ AddV2 ── Relu                    b ─┴ TfInterop>Elementwise
//
// The results have the bits that TensorFlow's kernels give: each operation is one that IEEE 754
// rounds once, or a comparison. Only NaN may have other bits, and in bfloat16 zero another sign. A
// pass may cast, so a normalization in Keras' mixed precision, in float32 between two casts, is
// one.
#include "cc_kernels/tf/elementwise.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/tf/program.h"
#include "cc_kernels/tf/program_rewrites.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_interop {
namespace {

using tensorflow::NodeDef;

// The step that an operand names, or -1 for an input.
int StepOf(absl::string_view text) {
  const std::optional<Operand> operand = ParseOperand(text);
  return operand.has_value() && operand->is_step ? operand->index : -1;
}

const char* InputType(const NodeDef& node) { return node.op() == "Cast" ? "SrcT" : "T"; }
const char* OutputType(const NodeDef& node) { return node.op() == "Cast" ? "DstT" : "T"; }

bool HasType(const NodeDef& node, absl::string_view name) {
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  return TryGetNodeAttr(node, name, &dtype) &&
         (dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_BFLOAT16);
}

// A step that a pass over memory may have.
bool IsElementwise(const NodeDef& node) {
  if (!FindElementwise(node.op()).has_value() || !HasType(node, InputType(node)) ||
      !HasType(node, OutputType(node)) || node.attr().count("_kernel") != 0) {
    return false;
  }
  bool truncates = false;
  if (TryGetNodeAttr(node, "Truncate", &truncates) && truncates) return false;
  std::string format;
  if (node.op() == "BiasAdd" && TryGetNodeAttr(node, "data_format", &format)) {
    return format == "NHWC";
  }
  // TensorFlow's kernel adds more than nine tensors in another order.
  return node.op() != "AddN" || (node.input_size() > 1 && node.input_size() < 10);
}

// Whether every operand that names a step names an earlier one, and elementwise ones by port 0.
bool IsWellFormed(const std::vector<NodeDef>& steps, const std::vector<bool>& is_elementwise) {
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const std::string& operand : steps[i].input()) {
      const int source = StepOf(operand);
      if (source >= static_cast<int>(i)) return false;
      if (source >= 0 && is_elementwise[source] && !absl::EndsWith(operand, ":0")) return false;
    }
  }
  return true;
}

// One operation that reads equal shapes is as fast in TensorFlow's kernel. It may broadcast, too,
// and that is not.
bool IsWorthAPass(const NodeDef& node) {
  return node.input_size() > 1 && node.op() != "AddN" && node.op() != "BiasAdd";
}

// `members` in order; the last is what others read.
NodeDef Join(const std::vector<NodeDef>& steps, const std::vector<int>& members) {
  NodeDef joined;
  joined.set_name(steps[members.back()].name());
  joined.set_op(kElementwiseOp);
  absl::flat_hash_map<std::string, int> inputs;
  auto* const serialized = (*joined.mutable_attr())["steps"].mutable_list();
  auto* const types = (*joined.mutable_attr())["Tin"].mutable_list();
  for (const int member : members) {
    NodeDef step = steps[member];
    for (std::string& operand : *step.mutable_input()) {
      const auto place = absl::c_find(members, StepOf(operand));
      if (place != members.end()) {
        operand = ToString({true, static_cast<int>(place - members.begin())});
        continue;
      }
      const auto [input, is_new] = inputs.try_emplace(operand, joined.input_size());
      if (is_new) {
        joined.add_input(operand);
        types->add_type(steps[member].attr().at(InputType(steps[member])).type());
      }
      operand = ToString({false, input->second});
    }
    serialized->add_s(step.SerializeAsString());
  }
  const NodeDef& last = steps[members.back()];
  (*joined.mutable_attr())["Tout"] = last.attr().at(OutputType(last));
  return joined;
}

}  // namespace

std::optional<Elementwise> FindElementwise(absl::string_view op) {
  static const auto* const ops = new absl::flat_hash_map<absl::string_view, Elementwise>({
      {"Add", Elementwise::kAdd},
      {"AddN", Elementwise::kAdd},
      {"AddV2", Elementwise::kAdd},
      {"BiasAdd", Elementwise::kAdd},
      {"Cast", Elementwise::kCast},
      {"Maximum", Elementwise::kMaximum},
      {"Minimum", Elementwise::kMinimum},
      {"Mul", Elementwise::kMul},
      {"RealDiv", Elementwise::kDiv},
      {"Relu", Elementwise::kRelu},
      {"Relu6", Elementwise::kRelu6},
      {"Square", Elementwise::kSquare},
      {"Sub", Elementwise::kSub},
  });
  const auto found = ops->find(op);
  return found == ops->end() ? std::nullopt : std::optional(found->second);
}

void JoinElementwise(std::vector<NodeDef>* steps, std::vector<std::string>* results) {
  const int count = static_cast<int>(steps->size());
  std::vector<bool> is_elementwise(count);
  std::vector<int> reader(count, -1);  // the only one, or -1
  std::vector<int> reader_count(count);
  for (int i = 0; i < count; ++i) is_elementwise[i] = IsElementwise((*steps)[i]);
  if (!IsWellFormed(*steps, is_elementwise)) return;
  for (int i = 0; i < count; ++i) {
    for (const std::string& operand : (*steps)[i].input()) {
      const int source = StepOf(operand);
      if (source < 0) continue;
      if (reader[source] != i) ++reader_count[source];
      reader[source] = i;
    }
  }
  for (const std::string& result : *results) {
    const int step = StepOf(result);
    if (step >= 0 && step < count) reader_count[step] += 2;  // more than one
  }
  // The step whose pass each is part of. What the last one of a pass reads has run before it, so
  // the others may wait for it.
  std::vector<int> last(count);
  std::vector<std::vector<int>> members(count);
  for (int i = count - 1; i >= 0; --i) {
    const bool joins = is_elementwise[i] && reader_count[i] == 1 && is_elementwise[reader[i]];
    last[i] = joins ? last[reader[i]] : i;
    members[last[i]].push_back(i);
  }
  std::vector<bool> is_joined(count);
  for (int i = 0; i < count; ++i) {
    is_joined[i] = last[i] != i;
    if (is_joined[i]) continue;
    absl::c_reverse(members[i]);
    const bool is_pass = is_elementwise[i] && (members[i].size() > 1 || IsWorthAPass((*steps)[i]));
    if (is_pass) (*steps)[i] = Join(*steps, members[i]);
  }
  RemoveSteps(is_joined, steps, results);
}

}  // namespace tf_interop
