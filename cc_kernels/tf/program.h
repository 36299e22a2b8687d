// The program of a node: the operations that it runs, and what they read and return.
//
// Every op of the library that runs operations has these attributes (TfInterop>Elementwise returns
// its last step, and has no `results`):
//
// steps: serialized NodeDefs, each after those that it reads, with operands as inputs, and without
//   device, control inputs and TensorFlow's attributes that start with an underscore. An operand is
//   `inputs:<i>`, an input of the node, or `steps:<j>:<port>`, an output of step j.
// results: the operand of each output of the node.
#ifndef TF_INTEROP_TF_PROGRAM_H_
#define TF_INTEROP_TF_PROGRAM_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

struct Operand {
  bool is_step = false;
  int index = 0;  // of the step, or of the input
  int port = 0;   // of the step

  bool operator==(const Operand& other) const {
    return is_step == other.is_step && index == other.index && port == other.port;
  }
};

// Nothing if the text is neither form, or has a negative number.
std::optional<Operand> ParseOperand(absl::string_view text);
std::string ToString(const Operand& operand);

// Returns kInvalidArgument with the number of a step that is no NodeDef.
absl::Status ParseSteps(const std::vector<std::string>& serialized,
                        std::vector<tensorflow::NodeDef>* steps);

// Removes steps that no other step and no result reads any more. Operands and `results` then name
// the steps that are left.
void RemoveSteps(const std::vector<bool>& is_removed, std::vector<tensorflow::NodeDef>* steps,
                 std::vector<std::string>* results);

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_PROGRAM_H_
