#include "cc_kernels/plugin/compiled_functions.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc_kernels/plugin/graph_pass.h"
#include "cc_kernels/xla/kernel_call.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/eager/context.h"
#include "tensorflow/core/common_runtime/eager/eager_op_rewrite_registry.h"
#include "tensorflow/core/common_runtime/eager/eager_operation.h"
#include "tensorflow/core/common_runtime/eager/tensor_handle.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/grappler/utils/functions.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/hash.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/public/version.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_interop {
namespace {

using tensorflow::FunctionDef;
using tensorflow::FunctionLibraryDefinition;

constexpr char kMustCompile[] = "_XlaMustCompile";
constexpr char kUnpackOp[] = "TfInterop>UnpackVariables";  // gives a function its variables
constexpr char kHandleShapes[] = "_handle_shapes";
constexpr char kHandleTypes[] = "_handle_dtypes";
constexpr char kCopy[] = "__tf_interop_";  // in the name of a copy

bool AreHandedOver() { return HasPass() && AreXlaCallsOn(); }

// Whether a program wants no graph plugins, as for graphs that Grappler optimizes.
bool ForbidsPlugins(const tensorflow::ConfigProto& config) {
  return config.graph_options().rewrite_options().use_plugin_optimizers() ==
         tensorflow::RewriterConfig::OFF;
}

bool MustCompile(tensorflow::AttrSlice attributes) {
  bool must_compile = false;
  return tensorflow::TryGetNodeAttr(attributes, kMustCompile, &must_compile) && must_compile;
}

// What is known of a function's arguments, by position: the attributes kHandleShapes and
// kHandleTypes of variables. FunctionDefs lack them, but without them no filter has a shape.
using Arguments = std::vector<FunctionDef::ArgAttrs>;

void AddVariable(tensorflow::DataType dtype, const tensorflow::PartialTensorShape& shape,
                 FunctionDef::ArgAttrs* argument) {
  auto& attributes = *argument->mutable_attr();
  attributes[kHandleTypes].mutable_list()->add_type(dtype);
  shape.AsProto(attributes[kHandleShapes].mutable_list()->add_shape());
}

// Stands for a function that is called with these arguments.
std::string KeyOf(const std::string& name, const Arguments& arguments) {
  std::string key = name;
  for (const FunctionDef::ArgAttrs& each : arguments) {
    absl::StrAppend(&key, " ", tensorflow::DeterministicProtoHash64(each));
  }
  return key;
}

// Copies a function and those that it calls, with new bodies.
class Copies {
 public:
  // The second argument are Python's stacks, by node, for messages.
  using Add = std::function<absl::Status(const FunctionDef&, const tensorflow::StackTracesMap&)>;

  // Finds functions in `library`, and adds copies to it by `add`, also those that are there
  // already.
  Copies(const FunctionLibraryDefinition& library, const char* device_type, Add add)
      : library_(library), device_type_(device_type), add_(std::move(add)) {}

  // The name of the copy of a function with these arguments, or its own name if nothing in it
  // changes.
  // NOLINTNEXTLINE(misc-no-recursion): functions call each other only so deep
  std::string Of(const std::string& name, const Arguments& arguments) {
    const std::string key = KeyOf(name, arguments);
    const auto known = names_.find(key);
    if (known != names_.end()) return known->second;
    names_[key] = name;  // for a function that calls itself
    const auto record = library_.FindRecord(name);
    if (record == nullptr || absl::StrContains(name, kCopy)) return name;
    const FunctionDef& original = record->fdef();
    FunctionDef copy = original;
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto& known_before = (*copy.mutable_arg_attr())[static_cast<uint32_t>(i)];
      known_before.mutable_attr()->insert(arguments[i].attr().begin(), arguments[i].attr().end());
    }
    const bool calls_copies = CallCopies(&copy);
    const bool has_new_body = ReplaceBody(&copy);
    if (!calls_copies && !has_new_body) return name;
    // Without what is known of this call's arguments, which XLA knows better.
    *copy.mutable_arg_attr() = original.arg_attr();
    // The same body has the same name, so its program is compiled once.
    copy.mutable_signature()->clear_name();
    const std::string copy_name =
        absl::StrCat(name, kCopy, absl::Hex(tensorflow::DeterministicProtoHash64(copy)));
    copy.mutable_signature()->set_name(copy_name);
    if (!add_(copy, record->stack_traces()).ok()) return name;
    return names_[key] = copy_name;
  }

 private:
  // Points the function's calls at copies; returns whether there are any.
  // NOLINTNEXTLINE(misc-no-recursion): see Of
  bool CallCopies(FunctionDef* function) {
    bool is_changed = false;
    // NOLINTNEXTLINE(misc-no-recursion)
    const auto replace = [&](const tensorflow::NodeDef& call, std::string* name) {
      std::string copy = Of(*name, ArgumentsOf(*function, call, *name));
      if (copy == *name) return;
      *name = std::move(copy);
      is_changed = true;
    };
    for (tensorflow::NodeDef& node : *function->mutable_node_def()) {
      if (library_.Find(node.op()) != nullptr) replace(node, node.mutable_op());
      for (auto& [name, value] : *node.mutable_attr()) {
        if (value.has_func()) replace(node, value.mutable_func()->mutable_name());
        if (!value.has_list()) continue;
        for (auto& each : *value.mutable_list()->mutable_func()) replace(node, each.mutable_name());
      }
    }
    return is_changed;
  }

  // Of a function that `call` in `caller` calls. They are the last inputs of the call: an If first
  // reads its condition.
  Arguments ArgumentsOf(const FunctionDef& caller, const tensorflow::NodeDef& call,
                        const std::string& called) const {
    const FunctionDef* const function = library_.Find(called);
    const int inputs = static_cast<int>(absl::c_count_if(
        call.input(), [](const std::string& text) { return !absl::StartsWith(text, "^"); }));
    Arguments arguments(function == nullptr ? 0 : function->signature().input_arg_size());
    const int first = inputs - static_cast<int>(arguments.size());
    for (int i = 0; i < caller.signature().input_arg_size(); ++i) {
      const auto known = caller.arg_attr().find(i);
      if (known == caller.arg_attr().end()) continue;
      for (int input = std::max(first, 0); input < inputs; ++input) {
        if (call.input(input) != caller.signature().input_arg(i).name()) continue;
        for (const char* const name : {kHandleShapes, kHandleTypes}) {
          const auto attribute = known->second.attr().find(name);
          if (attribute == known->second.attr().end()) continue;
          (*arguments[input - first].mutable_attr())[name] = attribute->second;
        }
      }
    }
    return arguments;
  }

  // Lets the pass replace the function's body. Returns whether it did.
  bool ReplaceBody(FunctionDef* function) const {
    if (!MayHoldConvolution(function->SerializeAsString())) return false;
    tensorflow::grappler::GrapplerFunctionItem item;
    if (!tensorflow::grappler::MakeGrapplerFunctionItem(*function, library_, TF_GRAPH_DEF_VERSION,
                                                        &item)
             .ok()) {
      return false;
    }
    const std::unique_ptr<TF_Status, decltype(&TF_DeleteStatus)> status(TF_NewStatus(),
                                                                        TF_DeleteStatus);
    // tensorflow/c/experimental/grappler/grappler.cc casts items like this too.
    const OwnedBuffer body =
        RunGraphPass({item.graph.SerializeAsString(), device_type_,
                      /*is_compiled=*/true, reinterpret_cast<const TF_GrapplerItem*>(&item)},
                     status.get());
    tensorflow::GraphDef graph;
    if (body == nullptr || !graph.ParseFromArray(body->data, static_cast<int>(body->length))) {
      return false;
    }
    item.SwapFunctionBody(std::move(graph));
    FunctionDef made;
    if (!tensorflow::grappler::MakeFunctionDef(item, library_, &made).ok()) return false;
    *made.mutable_resource_arg_unique_id() = function->resource_arg_unique_id();
    *function = std::move(made);
    return true;
  }

  const FunctionLibraryDefinition& library_;
  const char* const device_type_;
  const Add add_;
  std::map<std::string, std::string> names_;  // of the copies, by function and arguments
};

// Calls in graphs.
class CallsInGraphs : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr || options.flib_def == nullptr ||
        !AreHandedOver() ||
        (options.session_options != nullptr && ForbidsPlugins(options.session_options->config))) {
      return absl::OkStatus();
    }
    FunctionLibraryDefinition* const library = options.flib_def;
    for (tensorflow::Node* const node : (*options.graph)->op_nodes()) {
      const tensorflow::AttrValue* const called = node->attrs().Find("f");
      if (!node->IsPartitionedCall() || called == nullptr || !called->has_func()) continue;
      const std::string& name = called->func().name();
      const FunctionDef* const function = library->Find(name);
      if (function == nullptr ||
          (!MustCompile(node->attrs()) && !MustCompile(tensorflow::AttrSlice(&function->attr())))) {
        continue;
      }
      const std::string& device = node->assigned_device_name().empty()
                                      ? node->requested_device()
                                      : node->assigned_device_name();
      tensorflow::DeviceNameUtils::ParsedName parsed;
      if (!tensorflow::DeviceNameUtils::ParseFullName(device, &parsed) ||
          (options.device_set != nullptr && IsElsewhere(*options.device_set, device))) {
        continue;
      }
      Copies copies(*library, DeviceTypeOf(parsed),
                    [library](const FunctionDef& copy, const tensorflow::StackTracesMap& stacks) {
                      return library->AddFunctionDef(copy, stacks);
                    });
      const std::string copy = copies.Of(name, ArgumentsOf(*node));
      if (copy == name) continue;
      tensorflow::NameAttrList call = called->func();
      call.set_name(copy);
      node->ClearAttr("f");
      node->AddAttr("f", call);
    }
    return absl::OkStatus();
  }

 private:
  static Arguments ArgumentsOf(const tensorflow::Node& call) {
    Arguments arguments(call.num_inputs());
    for (const tensorflow::Edge* const edge : call.in_edges()) {
      if (edge->IsControlEdge()) continue;
      FunctionDef::ArgAttrs& argument = arguments[edge->dst_input()];
      const tensorflow::AttrSlice source = edge->src()->attrs();
      const std::string& op = edge->src()->type_string();
      const size_t output = edge->src_output();
      if (op == "_Arg") {
        for (const char* const name : {kHandleShapes, kHandleTypes}) {
          const tensorflow::AttrValue* const attribute = source.Find(name);
          if (attribute != nullptr) (*argument.mutable_attr())[name] = *attribute;
        }
        continue;
      }
      std::vector<tensorflow::DataType> types;
      std::vector<tensorflow::PartialTensorShape> shapes;
      bool is_known = false;
      if (op == "VarHandleOp") {
        is_known = tensorflow::GetNodeAttr(source, "dtype", &types.emplace_back()).ok() &&
                   tensorflow::GetNodeAttr(source, "shape", &shapes.emplace_back()).ok();
      } else if (op == kUnpackOp) {
        is_known = tensorflow::GetNodeAttr(source, "dtypes", &types).ok() &&
                   tensorflow::GetNodeAttr(source, "shapes", &shapes).ok();
      }
      if (is_known && output < types.size() && output < shapes.size()) {
        AddVariable(types[output], shapes[output], &argument);
      }
    }
    return arguments;
  }

  // Another process may lack the op, or have a pass of its own.
  static bool IsElsewhere(const tensorflow::DeviceSet& devices, const std::string& name) {
    const tensorflow::Device* const device = devices.FindDeviceByName(name);
    return device != nullptr && !device->IsLocal();
  }

  static const char* DeviceTypeOf(const tensorflow::DeviceNameUtils::ParsedName& device) {
    return device.has_type && device.type == kGpu ? kGpu : kCpu;
  }
};

// Calls from Python.
class CallsFromPython : public tensorflow::EagerOpRewrite {
 public:
  CallsFromPython() : EagerOpRewrite("tf_interop", __FILE__, "0") {}

  absl::Status Run(tensorflow::EagerOperation* call,
                   std::unique_ptr<tensorflow::EagerOperation>*) override {
    if (!call->is_function() || !AreHandedOver()) return absl::OkStatus();
    tensorflow::EagerContext& context = call->EagerContext();
    if (!call->IsLocal()) return absl::OkStatus();  // see CallsInGraphs::IsElsewhere
    const char* const device_type = DeviceTypeOf(*call, context);
    const std::string name(call->op_name());
    const std::string key = absl::StrCat(reinterpret_cast<uintptr_t>(&context), " ", device_type,
                                         " ", VariablesOf(*call), " ", name);
    std::string copy;
    // Another context may have got the address of one that is gone.
    const bool is_known =
        Find(key, &copy) && (copy == name || context.FuncLibDef()->Contains(copy));
    if ((is_known && copy == name) || ForbidsPlugins(*call)) return absl::OkStatus();
    if (!is_known) {
      const FunctionDef* const function = call->GetFunctionDef();
      copy = name;
      if (function != nullptr && MustCompile(tensorflow::AttrSlice(&function->attr()))) {
        // A call with other variables of the same shapes needs no other copy.
        const Arguments arguments = ArgumentsOf(*call);
        const std::string with_shapes = absl::StrCat(reinterpret_cast<uintptr_t>(&context), " ",
                                                     device_type, " ", KeyOf(name, arguments));
        if (!Find(with_shapes, &copy) || !context.FuncLibDef()->Contains(copy)) {
          copy = Copy(&context, device_type, name, arguments);
          Remember(with_shapes, copy);
        }
      }
      Remember(key, copy);
    }
    if (copy != name) call->UpdateName(copy);
    return absl::OkStatus();
  }

 private:
  static bool ForbidsPlugins(const tensorflow::EagerOperation& call) {
    std::string serialized;
    tensorflow::ConfigProto config;
    return call.Attrs().Get("config_proto", &serialized).ok() &&
           config.ParseFromString(serialized) && tf_interop::ForbidsPlugins(config);
  }

  // A number that is the same as long as a function is called with the same variables.
  static size_t VariablesOf(const tensorflow::EagerOperation& call) {
    size_t number = 0;
    for (const tensorflow::ImmediateExecutionTensorHandle* const input : call.GetInputs()) {
      if (input->DataType() == tensorflow::DT_RESOURCE) {
        number = tensorflow::Hash64Combine(number, reinterpret_cast<uintptr_t>(input));
      }
    }
    return number;
  }

  static Arguments ArgumentsOf(const tensorflow::EagerOperation& call) {
    Arguments arguments;
    for (tensorflow::ImmediateExecutionTensorHandle* const input : call.GetInputs()) {
      FunctionDef::ArgAttrs& argument = arguments.emplace_back();
      std::vector<tensorflow::DtypeAndPartialTensorShape> variables;
      if (input->DataType() != tensorflow::DT_RESOURCE ||
          !tensorflow::TensorHandle::classof(input) ||
          !tensorflow::TensorHandleFromInterface(input)
               ->GetResourceHandleDtypesAndShapes(&variables)
               .ok()) {
        continue;
      }
      for (const auto& [dtype, shape] : variables) AddVariable(dtype, shape, &argument);
    }
    return arguments;
  }

  std::string Copy(tensorflow::EagerContext* context, const char* device_type,
                   const std::string& name, const Arguments& arguments) {
    RemoveCopiesOfRemoved(context);
    Added added = {context, name, {}};
    Copies copies(*context->FuncLibDef(), device_type,
                  [&](const FunctionDef& each, const tensorflow::StackTracesMap& stacks) {
                    TF_RETURN_IF_ERROR(context->AddFunctionDefWithStackTraces(each, stacks));
                    added.copies.push_back(each.signature().name());
                    return absl::OkStatus();
                  });
    std::string copy = copies.Of(name, arguments);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!added.copies.empty()) added_.push_back(std::move(added));
    return copy;
  }

  // Of a call without a device TensorFlow decides later; it prefers a GPU.
  static const char* DeviceTypeOf(const tensorflow::EagerOperation& call,
                                  const tensorflow::EagerContext& context) {
    const auto& wanted = call.GetDeviceParsedName();
    if (wanted.has_type) return wanted.type == kGpu ? kGpu : kCpu;
    for (const tensorflow::Device* const device : context.local_device_mgr()->ListDevices()) {
      if (device->device_type() == kGpu) return kGpu;
    }
    return kCpu;
  }

  bool Find(const std::string& key, std::string* copy) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (version_ != PassVersion()) {
      version_ = PassVersion();
      names_.clear();
    }
    const auto found = names_.find(key);
    if (found == names_.end()) return false;
    *copy = found->second;
    return true;
  }

  // Removes the copies that were made for functions that the program has removed since. The context
  // counts how often each was added.
  void RemoveCopiesOfRemoved(tensorflow::EagerContext* context) {
    std::vector<Added> removed;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto first =
          std::stable_partition(added_.begin(), added_.end(), [&](const Added& each) {
            return each.context != context || context->FindFunctionDef(each.name) != nullptr;
          });
      std::move(first, added_.end(), std::back_inserter(removed));
      added_.erase(first, added_.end());
    }
    for (const Added& each : removed) {
      for (const std::string& copy : each.copies) (void)context->RemoveFunction(copy);
    }
  }

  void Remember(const std::string& key, const std::string& copy) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A program may call functions with new variables forever.
    if (names_.size() >= kMostNames) names_.clear();
    names_[key] = copy;
  }

  // The copies that were added to a context for a function that was called.
  struct Added {
    tensorflow::EagerContext* context;
    std::string name;
    std::vector<std::string> copies;
  };

  static constexpr size_t kMostNames = 10'000;

  std::mutex mutex_;  // not held while Python runs
  std::vector<Added> added_;
  int64_t version_ = 0;
  absl::flat_hash_map<std::string, std::string> names_;  // of functions that are called
};

}  // namespace

void HandOverCompiledFunctions() {
  static const bool is_registered = [] {
    tensorflow::OptimizationPassRegistry::Global()->Register(
        tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, /*phase=*/5,
        std::make_unique<CallsInGraphs>());
    tensorflow::EagerOpRewriteRegistry::Global()->Register(
        tensorflow::EagerOpRewriteRegistry::PRE_EXECUTION, /*ordinal=*/20000,
        std::make_unique<CallsFromPython>());
    return true;
  }();
  (void)is_registered;
}

}  // namespace tf_interop
