// TfInterop>Kept: values that depend only on variables, computed again only after a change.
//
// A change is seen without reading any data. The op holds a reference to the memory of each
// variable that its steps read. An update that would write into this memory must then copy it
// first, so the next call finds the variable at other memory. Three kinds of variables have no such
// rule, and are never held: those that TensorFlow has switched to copying on read, because sparse
// updates write into them in place; those whose memory has other writers; and, for a while, those
// that changed between calls several times in a row (see holding.h).
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc_kernels/core/counters.h"
#include "cc_kernels/tf/holding.h"
#include "cc_kernels/tf/own_memory.h"
#include "cc_kernels/tf/steps.h"
#include "cc_kernels/tf/stock_kernel.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;
using tensorflow::Var;

// How far ahead to load what the caches have lost since the last call: thousands of variables and
// results, where each miss takes up to 0.1 us.
constexpr int kAhead = 8;

struct HeldVariable {
  Tensor handle;                 // keeps `variable`
  Var* variable = nullptr;       // null if every call has to find it by name
  Tensor value;                  // empty if no step reads it
  const void* buffer = nullptr;  // of its value when this was made; only to load it early
};

// The results of one computation, and the values of the variables that it read.
struct HeldValues {
  std::vector<HeldVariable> variables;
  std::vector<Tensor> results;  // empty tensors for results that are a variable's value
  DeviceCounts* counts = nullptr;
  int64_t bytes = 0;  // of the results

  HeldValues() = default;
  HeldValues(const HeldValues&) = delete;
  HeldValues& operator=(const HeldValues&) = delete;
  ~HeldValues() { AddKeptBytes(counts, -bytes); }
};

// Whether two tensors have the same memory, without reading anything from it. If one of them is
// held, nobody can have written into it meanwhile: a variable's update first copies what others
// hold.
bool IsSameBuffer(const Tensor& a, const Tensor& b) {
  return tensorflow::DMAHelper::buffer(&a) == tensorflow::DMAHelper::buffer(&b);
}

class Kept : public OpKernel {
 public:
  explicit Kept(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, Read(context));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const HeldValues> held = FindHeld(context);
    const bool was_held = held != nullptr;
    std::vector<Tensor> values(steps_.input_count);
    bool may_hold = true;
    for (int i = 0; i < variable_count_; ++i) {
      if (was_held && i + kAhead < variable_count_ && !is_step_input_[i + kAhead]) {
        __builtin_prefetch(held->variables[i + kAhead].buffer, /*rw=*/1);
      }
      if (was_held && is_step_input_[i]) continue;
      bool is_plain = false;
      OP_REQUIRES_OK(context, ReadVariable(context, i, held.get(), &values[i], &is_plain));
      may_hold = may_hold && (is_plain || !is_step_input_[i]);
    }
    if (!was_held && !steps_.steps.empty()) {
      for (int i = variable_count_; i < steps_.input_count; ++i) values[i] = context->input(i);
      OP_REQUIRES_OK(context, ComputeSteps(context, values, may_hold, &held));
    }
    const auto value_of = [&](int i) -> const Tensor& {
      const int result = steps_.results[i];
      if (result >= steps_.input_count) return held->results[i];
      if (result >= variable_count_) return context->input(result);
      return was_held && is_step_input_[result] ? held->variables[result].value : values[result];
    };
    for (int i = 0; i < context->num_outputs(); ++i) {
      if (i + kAhead < context->num_outputs()) {
        __builtin_prefetch(tensorflow::DMAHelper::buffer(&value_of(i + kAhead)), /*rw=*/1);
      }
      context->set_output(i, value_of(i));
    }
  }

 private:
  absl::Status Read(OpKernelConstruction* context) {
    std::vector<std::string> reads;
    TF_RETURN_IF_ERROR(context->GetAttr("reads", &reads));
    TF_RETURN_IF_ERROR(context->GetAttr("N", &variable_count_));
    if (static_cast<int>(reads.size()) != variable_count_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Expected ", variable_count_, " reads, one for each variable, got ", reads.size(), "."));
    }
    tensorflow::DataTypeVector types;
    for (const std::string& serialized : reads) {
      tensorflow::NodeDef node;
      if (!node.ParseFromString(serialized) || node.op() != "ReadVariableOp") {
        return absl::InvalidArgumentError(absl::StrCat(
            "Expected a serialized ReadVariableOp at read ", reads_.size(), ", got other bytes."));
      }
      TF_RETURN_IF_ERROR(MakeStockKernel(context->device(), context->graph_def_version(),
                                         /*has_constant_filter=*/false, node,
                                         &reads_.emplace_back()));
      types.push_back(reads_.back()->output_type(0));
    }
    const tensorflow::DataTypeSlice all = context->input_types();
    types.insert(types.end(), all.begin() + variable_count_, all.end());
    TF_RETURN_IF_ERROR(
        StepsReader(context, types, /*constant_inputs=*/{}, /*kept_inputs=*/{}, &steps_).Read());
    is_step_input_.resize(steps_.input_count);
    for (const KernelStep& step : steps_.steps) {
      for (const OperandRead& read : step.reads) {
        if (read.operand < steps_.input_count) is_step_input_[read.operand] = true;
      }
    }
    counts_ = FindCounts(ShortDeviceName(context));
    return absl::OkStatus();
  }

  // The variable of a handle, null if there is none. `looked_up` keeps one that is found by name.
  static Var* FindVariable(OpKernelContext* context, const tensorflow::ResourceHandle& handle,
                           tensorflow::core::RefCountPtr<Var>* looked_up) {
    if (handle.IsRefCounting()) {
      const absl::StatusOr<Var*> found = handle.GetResource<Var>();
      return found.ok() ? *found : nullptr;
    }
    return tensorflow::LookupResource(context, handle, looked_up).ok() ? looked_up->get() : nullptr;
  }

  // Reads variable `i`; `held` may be null. `is_plain` becomes whether its value may be held.
  absl::Status ReadVariable(OpKernelContext* context, int i, const HeldValues* held, Tensor* value,
                            bool* is_plain) {
    tensorflow::core::RefCountPtr<Var> looked_up;
    Var* variable = held == nullptr ? nullptr : held->variables[i].variable;
    if (variable == nullptr || !IsSameBuffer(context->input(i), held->variables[i].handle)) {
      variable = FindVariable(context, tensorflow::HandleFromInput(context, i), &looked_up);
    }
    if (variable != nullptr) {
      const tensorflow::tf_shared_lock lock(*variable->mu());
      const Tensor& tensor = *variable->tensor();
      if (variable->is_initialized && !variable->copy_on_read_mode.load() &&
          tensor.dtype() == reads_[i]->output_type(0)) {
        *value = tensor;
        *is_plain = is_step_input_[i] && IsTensorFlowsOwn(tensor);
        return absl::OkStatus();
      }
    }
    // TensorFlow's own op copies the value, or has an error to report.
    *is_plain = false;
    OpKernel* const kernel = reads_[i].get();
    OpKernelContext::Params params = StepParams(*context);
    const TensorValue input = context->params()->inputs[i];
    const tensorflow::AllocatorAttributes input_attributes = context->input_alloc_attr(i);
    tensorflow::AllocatorAttributes output_attributes;
    params.op_kernel = kernel;
    params.inputs = absl::MakeConstSpan(&input, 1);
    params.input_alloc_attrs = absl::MakeConstSpan(&input_attributes, 1);
    params.output_attr_array = &output_attributes;
    OpKernelContext derived(&params, /*num_outputs=*/1);
    kernel->Compute(&derived);
    TF_RETURN_IF_ERROR(derived.status());
    const std::unique_ptr<Tensor> read(derived.release_output(0).tensor);
    *value = *read;
    return absl::OkStatus();
  }

  // The held values if no variable has changed since they were computed, else null.
  std::shared_ptr<const HeldValues> FindHeld(OpKernelContext* context) {
    std::shared_ptr<const HeldValues> held;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      held = held_;
    }
    if (held == nullptr) return nullptr;
    for (int i = 0; i < variable_count_; ++i) {
      if (i + kAhead < variable_count_) {
        Var* const next = held->variables[i + kAhead].variable;
        if (next != nullptr) {
          __builtin_prefetch(next->mu(), /*rw=*/1);
          __builtin_prefetch(next->tensor());
          __builtin_prefetch(&next->copy_on_read_mode);
        }
      }
      if (is_step_input_[i] && !IsUnchanged(context, i, held->variables[i])) return nullptr;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    holding_.SawTheSame();
    return held;
  }

  bool IsUnchanged(OpKernelContext* context, int i, const HeldVariable& held) const {
    tensorflow::core::RefCountPtr<Var> looked_up;
    Var* variable = held.variable;
    if (variable == nullptr) {
      variable = FindVariable(context, tensorflow::HandleFromInput(context, i), &looked_up);
    } else if (!IsSameBuffer(context->input(i), held.handle)) {
      return false;  // perhaps another variable
    }
    if (variable == nullptr) return false;
    const tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& tensor = *variable->tensor();
    return variable->is_initialized && !variable->copy_on_read_mode.load() &&
           IsSameBuffer(tensor, held.value) && tensor.dtype() == held.value.dtype() &&
           tensor.shape() == held.value.shape();
  }

  // Drops what is held before it computes anew, so that both need no memory at the same time.
  absl::Status ComputeSteps(OpKernelContext* context, const std::vector<Tensor>& values,
                            bool may_hold, std::shared_ptr<const HeldValues>* computed) {
    std::shared_ptr<const HeldValues> old;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      old = std::exchange(held_, nullptr);
      may_hold = may_hold && holding_.ShouldHoldNew();
    }
    old.reset();
    const CountingFor counting(counts_);
    CountKeptComputation();
    std::vector<Tensor> inputs = values;
    absl::InlinedVector<TensorValue, 16> operands;
    for (Tensor& input : inputs) operands.emplace_back(&input);
    StepsRun run(*context, steps_, StepsRun::Kind::kShared, operands);
    StepsRun::Lane lane(&run);
    for (const KernelStep& step : steps_.steps) {
      TF_RETURN_IF_ERROR(lane.Run(step, static_cast<tensorflow::DeviceBase*>(context->device())));
    }
    auto made = std::make_shared<HeldValues>();
    made->counts = counts_;
    made->results.resize(steps_.results.size());
    for (size_t i = 0; i < steps_.results.size(); ++i) {
      if (steps_.results[i] < steps_.input_count) continue;
      made->results[i] = run.output(steps_.results[i]);
      made->bytes += static_cast<int64_t>(made->results[i].TotalBytes());
    }
    *computed = made;
    if (!may_hold) {
      made->bytes = 0;
      return absl::OkStatus();
    }
    AddKeptBytes(counts_, made->bytes);
    made->variables.resize(variable_count_);
    for (int i = 0; i < variable_count_; ++i) {
      const Tensor& handle = context->input(i);
      const auto& resource = handle.scalar<tensorflow::ResourceHandle>()();
      Var* const variable =
          resource.IsRefCounting() ? FindVariable(context, resource, nullptr) : nullptr;
      made->variables[i] = {handle, variable, is_step_input_[i] ? values[i] : Tensor(),
                            tensorflow::DMAHelper::buffer(&values[i])};
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = std::move(made);
    return absl::OkStatus();
  }

  int variable_count_ = 0;
  std::vector<std::unique_ptr<OpKernel>> reads_;
  Steps steps_;
  std::vector<bool> is_step_input_;
  DeviceCounts* counts_ = nullptr;

  std::mutex mutex_;                        // guards the rest
  std::shared_ptr<const HeldValues> held_;  // null before the first call and while paused
  Holding holding_;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>Kept").Device(tensorflow::DEVICE_CPU), Kept);
REGISTER_KERNEL_BUILDER(
    Name("TfInterop>Kept").Device(tensorflow::DEVICE_GPU).HostMemory("variables"), Kept);

}  // namespace
}  // namespace tf_interop
