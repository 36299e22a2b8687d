// TfInterop>Kept: values that depend only on variables, computed again only after a change.
//
// A change is seen without reading any data. The op holds a reference to the memory of each
// variable that its steps read, and to small ones that it only passes on. An update that would
// write into this memory must then copy it first, so the next call finds the variable at other
// memory. Three kinds of variables have no such rule, and are never held: those that TensorFlow has
// switched to copying on read, because sparse updates write into them in place; those whose memory
// has other writers; and, for a while, those that changed between calls several times in a row (see
// holding.h).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/held_values.h"
#include "cc_kernels/tf/holding.h"
#include "cc_kernels/tf/own_memory.h"
#include "cc_kernels/tf/packed_values.h"
#include "cc_kernels/tf/program.h"
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
using PackedHandles = SharedValues<Tensor>;

// How far ahead to load what the caches have lost since the last call: thousands of variables and
// results, where each miss takes up to 0.1 us.
constexpr int kAhead = 64;

// To hold a larger variable that no step reads would take memory after an update, and save little.
constexpr size_t kLargestHeldForPassing = 1 << 18;

struct HeldVariable {
  Tensor handle;            // keeps `variable`
  Var* variable = nullptr;  // null if every call has to find it by name
  Tensor value;             // empty if every call reads it
};

// A held variable whose handle states one shape, which TensorFlow lets nobody change, except by a
// raw op outside of graphs. While it has this memory, it has the held value.
struct WatchedVariable {
  int read;
  Var* variable;
  const tensorflow::TensorBuffer* memory;
};

// What the steps computed once. Results that are a variable's value have empty tensors.
struct StepResults {
  std::vector<Tensor> tensors;
  DeviceCounts* counts = nullptr;
  int64_t bytes = 0;  // that are counted as kept

  StepResults() = default;
  StepResults(const StepResults&) = delete;
  StepResults& operator=(const StepResults&) = delete;
  ~StepResults() { AddKeptBytes(counts, -bytes); }
};

// The results of one computation, and the values of the variables that it read.
struct HeldValues {
  std::shared_ptr<const StepResults> results;
  PackedHandles packed;  // that the handles are in; null if they are inputs
  std::vector<HeldVariable> variables;
  std::vector<WatchedVariable> watched;  // some of those that are held
  std::vector<int> unwatched;            // the others
  std::vector<int> read;                 // inputs that every call reads
  std::vector<int> place;                // by input: in `read`; -1 if held

  void Read(int input) {
    place[input] = static_cast<int>(read.size());
    read.push_back(input);
  }
};

// Whether two tensors have the same memory, without reading anything from it. If one of them is
// held, nobody can have written into it meanwhile: a variable's update first copies what others
// hold.
bool IsSameBuffer(const Tensor& a, const Tensor& b) {
  return tensorflow::DMAHelper::buffer(&a) == tensorflow::DMAHelper::buffer(&b);
}

// What one call found.
struct CallValues {
  std::shared_ptr<const HeldValues> held;
  std::vector<Tensor> inputs;         // those that are not held, or all if nothing was held
  std::vector<const Tensor*> values;  // all results
};

// The handles of the variables in one call.
class Handles {
 public:
  Handles(const OpKernelContext& context, const std::vector<int>& places, int unpacked_count)
      : context_(context), places_(places), unpacked_count_(unpacked_count) {}

  void Unpack(PackedHandles packed) { packed_ = std::move(packed); }
  const PackedHandles& packed() const { return packed_; }

  bool is_packed(int i) const { return places_[i] >= unpacked_count_; }
  const Tensor& operator[](int i) const {
    const int place = places_[i];
    return is_packed(i) ? (*packed_)[place - unpacked_count_] : context_.input(place);
  }

 private:
  const OpKernelContext& context_;
  const std::vector<int>& places_;
  const int unpacked_count_;
  PackedHandles packed_;
};

class Kept : public OpKernel {
 public:
  explicit Kept(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, Read(context));
  }

  void Compute(OpKernelContext* context) override {
    Handles handles(*context, handles_, unpacked_count_);
    if (has_packed_) OP_REQUIRES_OK(context, Unpack(*context, &handles));
    const auto call = std::make_shared<CallValues>();
    call->held = FindHeld(context, handles);
    const std::shared_ptr<const HeldValues> held = call->held;  // computed by an earlier call
    std::vector<Tensor>& inputs = call->inputs;
    inputs.resize(held != nullptr ? held->read.size() : steps_.input_count);
    const auto read = [&](int i, Tensor* value, bool* may_hold) {
      if (i < read_count_) {
        return ReadVariable(context, handles, i, held.get(), value, may_hold);
      }
      *value = context->input(first_constant_ + i - read_count_);
      return absl::OkStatus();
    };
    std::vector<bool> may_hold(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      bool may_hold_it = false;
      const int input = held != nullptr ? held->read[i] : static_cast<int>(i);
      OP_REQUIRES_OK(context, read(input, &inputs[i], &may_hold_it));
      may_hold[i] = may_hold_it;
    }
    if (held == nullptr && !steps_.steps.empty()) {
      OP_REQUIRES_OK(context, ComputeSteps(context, handles, inputs, may_hold, &call->held));
    }
    const auto value_of = [&](int i) -> const Tensor& {
      const int result = steps_.results[i];
      if (result >= steps_.input_count) return call->held->results->tensors[i];
      if (held == nullptr) return inputs[result];
      const int place = held->place[result];
      return place < 0 ? held->variables[result].value : inputs[place];
    };
    if (is_packing_) {
      const int count = static_cast<int>(steps_.results.size());
      call->values.reserve(count);
      for (int i = 0; i < count; ++i) call->values.push_back(&value_of(i));
      Tensor* packed = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape(), &packed));
      packed->scalar<tensorflow::Variant>()() = KeptValues{{call, &call->values}};
      return;
    }
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
    int packed_count = 0;
    tensorflow::DataTypeVector kept_types;
    TF_RETURN_IF_ERROR(context->GetAttr("reads", &reads));
    TF_RETURN_IF_ERROR(context->GetAttr("N", &unpacked_count_));
    TF_RETURN_IF_ERROR(context->GetAttr("P", &packed_count));
    TF_RETURN_IF_ERROR(context->GetAttr("handles", &handles_));
    TF_RETURN_IF_ERROR(context->GetAttr("kept_types", &kept_types));
    has_packed_ = packed_count > 0;
    is_packing_ = !kept_types.empty();
    first_constant_ = unpacked_count_ + packed_count;
    read_count_ = static_cast<int>(reads.size());
    const int most = has_packed_ ? std::numeric_limits<int>::max() : unpacked_count_;
    if (packed_count > 1 || handles_.size() != reads.size() ||
        absl::c_any_of(handles_, [&](int handle) { return handle < 0 || handle >= most; })) {
      return InvalidArgument("Expected the handle of each of ", read_count_, " reads, from 0 to ",
                             most - 1, ", got [", absl::StrJoin(handles_, ", "), "], and ",
                             packed_count, " packed inputs.");
    }
    const tensorflow::DataTypeSlice results = context->output_types();
    if (is_packing_ && (results.size() != 1 || results[0] != tensorflow::DT_VARIANT)) {
      return InvalidArgument("Expected one output for ", kept_types.size(), " packed values, got ",
                             results.size(), ".");
    }
    if (!is_packing_) kept_types.assign(results.begin(), results.end());
    tensorflow::DataTypeVector types;
    for (const std::string& serialized : reads) {
      tensorflow::NodeDef node;
      if (!node.ParseFromString(serialized) || node.op() != "ReadVariableOp") {
        return InvalidArgument("Expected a serialized ReadVariableOp at read ", reads_.size(),
                               ", got other bytes.");
      }
      TF_RETURN_IF_ERROR(MakeStockKernel(context->device(), context->graph_def_version(),
                                         /*has_constant_filter=*/false, node,
                                         &reads_.emplace_back()));
      types.push_back(reads_.back()->output_type(0));
    }
    const tensorflow::DataTypeSlice all = context->input_types();
    types.insert(types.end(), all.begin() + first_constant_, all.end());
    TF_RETURN_IF_ERROR(StepsReader(context, types, kept_types, /*kept_inputs=*/{}, &steps_).Read());
    is_step_input_.resize(steps_.input_count);
    for (const KernelStep& step : steps_.steps) {
      for (const OperandRead& read : step.reads) {
        if (read.operand < steps_.input_count) is_step_input_[read.operand] = true;
      }
    }
    counts_ = FindCounts(ShortDeviceName(context));
    return absl::OkStatus();
  }

  absl::Status Unpack(const OpKernelContext& context, Handles* handles) const {
    PackedHandles packed = tf_interop::Unpack<Tensor>(context.input(unpacked_count_));
    const int64_t count = packed == nullptr ? 0 : static_cast<int64_t>(packed->size());
    for (const int handle : handles_) {
      if (handle - unpacked_count_ < count) continue;
      return InvalidArgument("Expected more than ", handle - unpacked_count_,
                             " packed variables, got ", count, ".");
    }
    handles->Unpack(std::move(packed));
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

  // Reads variable `i`; `held` may be null. `may_hold` becomes whether its value may be held.
  absl::Status ReadVariable(OpKernelContext* context, const Handles& handles, int i,
                            const HeldValues* held, Tensor* value, bool* may_hold) {
    tensorflow::core::RefCountPtr<Var> looked_up;
    Var* variable = held == nullptr ? nullptr : held->variables[i].variable;
    if (variable == nullptr || !IsSameHandle(handles, i, *held)) {
      variable = FindVariable(context, HandleIn(handles[i]), &looked_up);
    }
    if (variable != nullptr) {
      const tensorflow::tf_shared_lock lock(*variable->mu());
      const Tensor& tensor = *variable->tensor();
      if (variable->is_initialized && !variable->copy_on_read_mode.load() &&
          tensor.dtype() == reads_[i]->output_type(0)) {
        *value = tensor;
        *may_hold = (is_step_input_[i] || tensor.TotalBytes() <= kLargestHeldForPassing) &&
                    IsTensorFlowsOwn(tensor);
        return absl::OkStatus();
      }
    }
    // TensorFlow's own op copies the value, or has an error to report.
    *may_hold = false;
    OpKernel* const kernel = reads_[i].get();
    OpKernelContext::Params params = StepParams(*context);
    Tensor handle = handles[i];
    const TensorValue input(&handle);
    tensorflow::AllocatorAttributes input_attributes;
    input_attributes.set_on_host(true);
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

  // The held values if no variable that they were computed from has changed, else null.
  std::shared_ptr<const HeldValues> FindHeld(OpKernelContext* context, const Handles& handles) {
    const std::shared_ptr<const HeldValues> held = held_.Get();
    std::vector<int> changed;
    if (held == nullptr || !Look(context, handles, *held, &changed)) return nullptr;
    const std::shared_ptr<const HeldValues> found =
        changed.empty() ? held : WithoutHolding(changed, *held);
    const std::lock_guard<std::mutex> lock(mutex_);
    holding_.SawTheSame();
    if (found != held && held_.Get() == held) held_.Set(found, found->results->bytes);
    return found;
  }

  // Whether all variables that steps read are unchanged; `changed` becomes the others that are not.
  bool Look(OpKernelContext* context, const Handles& handles, const HeldValues& held,
            std::vector<int>* changed) const {
    const auto may_go_on = [&](int read) {
      if (IsUnchanged(context, handles, read, held)) return true;
      changed->push_back(read);
      return !is_step_input_[read];
    };
    const std::vector<WatchedVariable>& watched = held.watched;
    const size_t count = watched.size();
    for (size_t i = 0; i < count + kAhead; ++i) {
      if (i < count) {
        // The pointer is a tensor's last member.
        __builtin_prefetch(reinterpret_cast<void**>(watched[i].variable->tensor() + 1) - 1);
      }
      if (i < kAhead) continue;
      const WatchedVariable& each = watched[i - kAhead];
      // Compares a pointer without the variable's lock: an update that has not ended is not seen,
      // or is seen already. Nothing else can have this memory while it is held.
      const bool is_same = tensorflow::DMAHelper::buffer(each.variable->tensor()) == each.memory &&
                           IsSameHandle(handles, each.read, held);
      if (!is_same && !may_go_on(each.read)) return false;
    }
    return absl::c_all_of(held.unwatched, may_go_on);
  }

  // The same values, but calls read some variables from now on.
  static std::shared_ptr<const HeldValues> WithoutHolding(const std::vector<int>& variables,
                                                          const HeldValues& held) {
    auto rest = std::make_shared<HeldValues>(held);
    for (const int read : variables) {
      rest->variables[read].value = Tensor();
      rest->Read(read);
    }
    const auto is_read = [&](int read) { return rest->place[read] >= 0; };
    rest->watched.erase(
        std::remove_if(rest->watched.begin(), rest->watched.end(),
                       [&](const WatchedVariable& each) { return is_read(each.read); }),
        rest->watched.end());
    rest->unwatched.erase(std::remove_if(rest->unwatched.begin(), rest->unwatched.end(), is_read),
                          rest->unwatched.end());
    return rest;
  }

  static const tensorflow::ResourceHandle& HandleIn(const Tensor& handle) {
    return handle.scalar<tensorflow::ResourceHandle>()();
  }

  static bool HasOneShape(const tensorflow::ResourceHandle& handle) {
    const auto stated = handle.dtypes_and_shapes();
    return stated.size() == 1 && stated[0].shape.IsFullyDefined();
  }

  static bool IsSameHandle(const Handles& handles, int i, const HeldValues& held) {
    return (handles.is_packed(i) && held.packed == handles.packed()) ||
           IsSameBuffer(handles[i], held.variables[i].handle);
  }

  bool IsUnchanged(OpKernelContext* context, const Handles& handles, int i,
                   const HeldValues& values) const {
    tensorflow::core::RefCountPtr<Var> looked_up;
    const HeldVariable& held = values.variables[i];
    Var* variable = held.variable;
    if (variable == nullptr) {
      variable = FindVariable(context, HandleIn(handles[i]), &looked_up);
    } else if (!IsSameHandle(handles, i, values)) {
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
  absl::Status ComputeSteps(OpKernelContext* context, const Handles& handles,
                            const std::vector<Tensor>& values, const std::vector<bool>& may_hold,
                            std::shared_ptr<const HeldValues>* computed) {
    bool may_hold_results = true;
    for (int i = 0; i < read_count_; ++i) {
      may_hold_results = may_hold_results && (may_hold[i] || !is_step_input_[i]);
    }
    std::shared_ptr<const HeldValues> old = held_.Take();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      may_hold_results = may_hold_results && holding_.ShouldHoldNew(/*replaces=*/old != nullptr);
    }
    old.reset();
    const CountingFor counting(counts_);
    Count(&Counters::kept_computations);
    std::vector<Tensor> inputs = values;
    absl::InlinedVector<TensorValue, 16> operands;
    for (Tensor& input : inputs) operands.emplace_back(&input);
    StepsRun run(*context, steps_, StepsRun::Kind::kShared, operands);
    StepsRun::Lane lane(&run);
    for (const KernelStep& step : steps_.steps) {
      TF_RETURN_IF_ERROR(lane.Run(step, static_cast<tensorflow::DeviceBase*>(context->device())));
    }
    auto results = std::make_shared<StepResults>();
    results->tensors.resize(steps_.results.size());
    int64_t bytes = 0;
    for (size_t i = 0; i < steps_.results.size(); ++i) {
      if (steps_.results[i] < steps_.input_count) continue;
      results->tensors[i] = run.output(steps_.results[i]);
      bytes += static_cast<int64_t>(results->tensors[i].TotalBytes());
    }
    auto made = std::make_shared<HeldValues>();
    made->results = results;
    *computed = made;
    if (!may_hold_results || !MakeRoomForHeld(bytes)) return absl::OkStatus();
    AddKeptBytes(counts_, bytes);
    results->counts = counts_;
    results->bytes = bytes;
    made->packed = handles.packed();
    made->variables.resize(read_count_);
    made->place.assign(steps_.input_count, -1);
    for (int i = 0; i < steps_.input_count; ++i) {
      if (!may_hold[i]) made->Read(i);
      if (i >= read_count_) continue;
      const tensorflow::ResourceHandle& resource = HandleIn(handles[i]);
      Var* const variable =
          resource.IsRefCounting() ? FindVariable(context, resource, nullptr) : nullptr;
      made->variables[i] = {handles[i], variable, may_hold[i] ? values[i] : Tensor()};
      if (!may_hold[i]) continue;
      if (variable != nullptr && HasOneShape(resource)) {
        made->watched.push_back({i, variable, tensorflow::DMAHelper::buffer(&values[i])});
      } else {
        made->unwatched.push_back(i);
      }
    }
    held_.Set(std::move(made), bytes);
    return absl::OkStatus();
  }

  int unpacked_count_ = 0;  // handles that are inputs of their own
  bool has_packed_ = false;
  std::vector<int> handles_;  // of each read: its place among those and then the packed ones
  int first_constant_ = 0;    // input
  int read_count_ = 0;
  bool is_packing_ = false;  // all results in one output
  std::vector<std::unique_ptr<OpKernel>> reads_;
  Steps steps_;
  std::vector<bool> is_step_input_;
  DeviceCounts* counts_ = nullptr;

  Held<HeldValues> held_;  // nothing before the first call and while paused
  std::mutex mutex_;
  Holding holding_;  // guarded by mutex_
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>Kept").Device(tensorflow::DEVICE_CPU), Kept);
REGISTER_KERNEL_BUILDER(Name("TfInterop>Kept")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("packed"),
                        Kept);

}  // namespace
}  // namespace tf_interop
